"""Port PORT-047-002: received messages and their outcomes."""

from collections.abc import Sequence
from typing import Protocol

from sea_mq_worker.domain.inbox_results import (
    LEASE_SECONDS,
    AbandonedDelivery,
    FailedHandling,
    InboxMessage,
    Lease,
    Receipt,
)


class InboxRepository(Protocol):
    """The record that makes an effect happen once (POL-047-003, POL-047-004).

    ``insert``, ``mark_processed`` and ``record_error`` are SDS-047's calls. The latter two change only a
    message that this repository leased lately and still holds; else they return False.

    Every other write but ``insert_batch`` names leases and returns the message ids whose lease still held; it
    changed no other row. Each is one statement, all or none. StoreUnavailableError: it may or may not have
    taken effect; repeating it is safe.

    A lease ends with its time. It has ended as well when its time is later than twice ``lease_seconds`` from
    now: it was taken before the database's clock was set back, and no worker has extended it since.
    """

    async def insert(self, msg: InboxMessage, *, lease_seconds: float = LEASE_SECONDS) -> Receipt:
        """Record a message, and lease it if it is to be handled (CMD-051)."""
        ...

    async def mark_processed(self, id: str) -> bool:  # noqa: A002 - SDS-047's
        """Record the handler's effect."""
        ...

    async def record_error(self, id: str, error: str) -> bool:  # noqa: A002
        """Record a handling without an effect, which costs an attempt, and end the lease."""
        ...

    async def insert_batch(
        self, entries: Sequence[InboxMessage], *, lease_seconds: float
    ) -> Sequence[Receipt]:
        """Record a batch in one round trip and lease the messages to handle; one receipt an entry, in order.

        A row that exists but is neither processed nor dead-lettered is not a duplicate to skip: it is leased
        again once no worker holds it, and keeps the stream position of this entry. Counts the attempt. Of
        equal ids in one batch the first is leased, the others are LeasedElsewhere.
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
    ) -> Sequence[InboxMessage]:
        """Return a consumer's messages without outcome or lease that were recorded before that age.

        Messages recorded in the future, before the clock was set back, are included. The oldest come first,
        after message id ``after`` where it is given, at most ``limit``.
        """
        ...

    async def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> frozenset[str]:
        """Extend leases that still hold to ``lease_seconds`` from now."""
        ...

    async def mark_processed_batch(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Record the handler's effect (CMD-051); only after this may the message be acknowledged."""
        ...

    async def record_error_batch(self, failures: Sequence[FailedHandling]) -> frozenset[str]:
        """Record handlings without an effect, end their leases, and give back uncounted attempts."""
        ...

    async def begin_dead_letter(self, lease: Lease, *, reason: str, detail: str) -> frozenset[str]:
        """Record, before the dead letter is published, that the stream may have it from now on."""
        ...

    async def mark_dead_lettered(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Record stored dead letters (CMD-052); only after this may their messages be acknowledged."""
        ...

    async def take_over(self, session: str) -> Sequence[AbandonedDelivery]:
        """End the leases that were taken under a session that is gone, and return their deliveries.

        The attempts stay counted. Does nothing if the session's worker is back.
        RowsRefusedError: some lease cannot be ended, and none was.
        """
        ...


class Resumptions(Protocol):
    """Operators' requests to handle slow event types at full speed again."""

    async def resumed(self, *, within_seconds: float) -> Sequence[tuple[str, float]]:
        """Return the event types resumed within that time, and how many seconds ago; empty: all types."""
        ...
