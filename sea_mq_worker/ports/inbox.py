"""Port PORT-047-002: what was received, and what became of it."""

from collections.abc import Sequence
from typing import Protocol

from sea_mq_worker.domain.inbox_results import FailedHandling, InboxEntry, Lease, Receipt


class InboxRepository(Protocol):
    """The record that makes an effect happen once (POL-047-003, POL-047-004).

    Every write but ``insert`` names leases and returns the message ids whose lease still held; the others
    were changed by nobody here. Each is one statement, all or none. StoreUnavailableError: it may or may
    not have taken effect; repeating it is safe.

    A lease is over once its time is. It is over as well when it ends later than twice ``lease_seconds`` from
    now: it was taken before the database's clock was set back, and nobody has extended it since.
    """

    async def insert(self, entries: Sequence[InboxEntry], *, lease_seconds: float) -> Sequence[Receipt]:
        """Record a batch in one round trip and lease what is to be handled; one receipt an entry, in order.

        A row that exists but is neither processed nor dead-lettered is not a duplicate to skip: it is leased
        again once nobody holds it, and from then on known by where this entry has it. Counts the attempt.
        Of equal ids in one batch the first is leased, the others are busy.
        """
        ...

    async def overdue(
        self,
        *,
        stream: str,
        consumer: str,
        older_than_seconds: float,
        lease_seconds: float,
        after: str,
        limit: int,
    ) -> Sequence[InboxEntry]:
        """Return messages of a consumer without an ending, leased by nobody and recorded so long ago.

        Or recorded at a time to come, before the clock was set back. The oldest first, those behind message
        id ``after`` where it is given, ``limit`` at most.
        """
        ...

    async def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> frozenset[str]:
        """Let leases that still hold end ``lease_seconds`` from now."""
        ...

    async def mark_processed(self, leases: Sequence[Lease]) -> frozenset[str]:
        """The handler has the effect (CMD-051); only after this may the message be acknowledged."""
        ...

    async def record_error(self, failures: Sequence[FailedHandling]) -> frozenset[str]:
        """No effect: keep the error and end the lease; what is not counted gives its attempt back."""
        ...

    async def begin_dead_letter(self, lease: Lease, *, reason: str, detail: str) -> frozenset[str]:
        """Note, before the dead letter is published, that it may be in its stream from now on."""
        ...

    async def mark_dead_lettered(self, leases: Sequence[Lease]) -> frozenset[str]:
        """The dead-letter stream has it (CMD-052); only after this may the message be acknowledged."""
        ...


class Resumptions(Protocol):
    """What operators want to go on at full speed."""

    async def resumed(self, *, within_seconds: float) -> Sequence[tuple[str, float]]:
        """Return the event types that somebody resumed lately, and how many seconds ago; empty: all types."""
        ...
