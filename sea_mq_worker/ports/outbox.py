"""Port PORT-047-001: where events wait until the broker has confirmed them."""

from collections.abc import Sequence
from typing import Protocol

from sea_mq_worker.domain.events import NO_BYTES_MAX, Claim
from sea_mq_worker.domain.outcomes import Died, Postponed, Published, Reaped, Released


class OutboxRepository(Protocol):
    """The queue that producers fill inside their own transactions.

    Every write names the claim that it was made under and returns the ids that were still leased by it.
    A missing id was taken over after its lease ran out: whoever has it now decides, nothing was changed.
    Each write is one statement, all or none. StoreUnavailableError: it may or may not have taken effect;
    repeating it is safe.
    """

    async def find_unpublished(
        self, *, batch_max: int, bytes_max: int = NO_BYTES_MAX, event_bytes_max: int = NO_BYTES_MAX
    ) -> Claim:
        """Lease up to ``batch_max`` due events, oldest first, and count the attempt before it is made.

        Together they have at most ``bytes_max``, but one is given however large. An event of more than
        ``event_bytes_max`` is never read: its size is given in place of its content.
        StoreTooSlowError: less may be read in time. RowsRefusedError: some event that is due cannot be
        claimed, and which one was not found; one that was found is left out and named.

        Nobody else is given them before the lease ends. An event with an ordering key is given only with
        every earlier unfinished event of its key in the same claim, in order. Never waits; an empty claim
        says that nothing is due.
        """
        ...

    async def mark_published(self, claim: Claim, verdicts: Sequence[Published]) -> frozenset[str]:
        """Record what the broker has confirmed, with the one stream and the sequences it named (CMD-050)."""
        ...

    async def increment_attempts(self, claim: Claim, verdicts: Sequence[Postponed | Died]) -> frozenset[str]:
        """Record attempts that brought no confirmation: due again after their delay, or dead."""
        ...

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        """Give back events that were never attempted; they are due at once."""
        ...

    async def reap(self) -> Reaped:
        """End the leases that ran out, and the wait of events that a clock set back keeps waiting.

        A lease that ran out spends a failure of its event, so one that kills its worker again and again ends
        dead. One of a time to come spends none. Where much waits, it takes more than one call to find all.
        RowsRefusedError: some events could not be changed, and all others were.
        """
        ...
