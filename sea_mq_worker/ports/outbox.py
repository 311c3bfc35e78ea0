"""Port PORT-047-001: the store of events until the broker has confirmed them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from sea_mq_worker.domain.events import BATCH_MAX, NO_BYTES_MAX, Claim
from sea_mq_worker.domain.outcomes import Died, Postponed, Published, Reaped, Released, Stored


class OutboxRepository(Protocol):
    """The queue that producers fill inside their own transactions.

    ``find_unpublished``, ``mark_published`` and ``increment_attempts`` are SDS-047's calls. The latter two
    change only an event that this repository claimed lately and still holds, or that nobody has claimed and
    that is due: they claim it first. They leave alone what another worker claimed, and return False.

    Every other write names the claim that it was made under and returns the ids that were still leased by it.
    A missing id was taken over after its lease expired: another worker has it, and its row was not changed.
    Each write is one statement, all or none. StoreUnavailableError: it may or may not have taken effect;
    repeating it is safe.
    """

    async def find_unpublished(
        self,
        *,
        batch_max: int = BATCH_MAX,
        bytes_max: int = NO_BYTES_MAX,
        event_bytes_max: int = NO_BYTES_MAX,
    ) -> Claim:
        """Lease up to ``batch_max`` due events, oldest first, and count the attempt before it is made.

        Together they have at most ``bytes_max``, but one event is returned however large. An event of more
        than ``event_bytes_max`` is never read: the claim has its size in place of its content.
        StoreTooSlowError: a smaller claim may be read in time. RowsRefusedError: some due event cannot be
        claimed and was not identified; an identified one is left out and named.

        No other worker gets them before the lease ends. An event with an ordering key comes only with every
        earlier unfinished event of its key in the same claim, in order. Never waits; an empty claim means
        that no event is due.
        """
        ...

    async def mark_published(self, id: str, *, stored: Stored | None = None) -> bool:  # noqa: A002 - SDS-047's
        """Record that the broker has the event (CMD-050), and where, if that is known."""
        ...

    async def increment_attempts(self, id: str, error: str, *, delay_seconds: float = 0.0) -> bool:  # noqa: A002
        """Record a failed attempt: due again after the delay, or DEAD with the last failure allowed."""
        ...

    async def mark_published_batch(
        self, claim: Claim, verdicts: Sequence[Published]
    ) -> Mapping[str, datetime]:
        """Record confirmed events with the stream and sequences that the broker named (CMD-050).

        Return when each was published, by its row.

        ``claim`` may be combined of several; an event is recorded under the token of any of them.
        """
        ...

    async def increment_attempts_batch(
        self, claim: Claim, verdicts: Sequence[Postponed | Died]
    ) -> frozenset[str]:
        """Record attempts without a confirmation: due again after their delay, or DEAD."""
        ...

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        """Give back events that were never attempted; they are due at once."""
        ...

    async def reap(self) -> Reaped:
        """End expired leases, and the wait of events that a clock set back keeps waiting.

        An expired lease costs its event a failure, so an event that kills its worker each time becomes DEAD.
        A lease taken in the future costs none. With many rows, one call may not find all.
        RowsRefusedError: some events could not be changed, and all others were.
        """
        ...

    async def take_over(self, session: str) -> int:
        """End the leases that were taken under a session that is gone; return their number.

        Costs each event a failure, as an expired lease does. An event is due at once after its first failure.
        Does nothing if the session's worker is back.
        RowsRefusedError: some event cannot be changed, and none was.
        """
        ...
