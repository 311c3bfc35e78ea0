"""Deferred settlements: an event waits for its place in the stream, and its row need not be settled at once.

At a steady rate a claim has a few events. The published ones of several claims are settled by one statement::

    ms   0        6        12       18  ...  50
         claim A  claim B  claim C           settle A, B, C, ... together

After a crash before the settlement, the events are CLAIMED and in the stream, as after any crash between
publish and settlement. When their leases have ended they are sent again under their ids, and the stream drops
the repeats.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sea_mq_worker.application.outbox.settlement import PublishedBatch, Settlement
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.domain.events import Claim
from sea_mq_worker.domain.outcomes import Published, Verdict
from sea_mq_worker.ports.outbox import OutboxRepository

_DELAY_SECONDS = 0.05
_EVENTS_MAX = 1000
"""Cap on the events of one settlement; above it each claim waits for its own, and so for the database."""


@dataclass(slots=True, kw_only=True)
class DeferredSettlements:
    """The published events of one lane that are not settled yet."""

    outbox: OutboxRepository
    settlement: Settlement
    _batches: list[PublishedBatch] = field(default_factory=list, init=False)
    _settling: bool = field(default=False, init=False)

    def take(self, claim: Claim, verdicts: Sequence[Verdict], *, claimed_at: float) -> bool:
        """Take the settlement of a claim, if it can wait; then ``settle`` must be called.

        It cannot while a backlog keeps claims large anyway, with a verdict that others may wait for, and in
        the second half of the lease, which is kept for a database that does not answer.
        """
        seconds = self.settlement.clock() - claimed_at
        published = [verdict for verdict in verdicts if isinstance(verdict, Published)]
        if (
            claim.more
            or len(published) < len(verdicts)
            or self._events + len(published) > _EVENTS_MAX
            or seconds + _DELAY_SECONDS > self.settlement.lease_seconds / 2
        ):
            return False
        kept = [verdict._replace(event=verdict.event.without_content()) for verdict in published]
        claim = replace(claim, events=tuple(verdict.event for verdict in kept))
        self._batches.append(
            PublishedBatch(claim=claim, verdicts=kept, claimed_at=claimed_at, seconds=seconds)
        )
        return True

    async def settle(self, stop: asyncio.Event) -> None:
        """Settle what was taken, a short time later; at once when the worker stops.

        The first of several callers settles for all.
        """
        if self._settling:
            return
        self._settling = True
        try:
            while self._batches:
                await sleep_or_stop(stop, seconds=_DELAY_SECONDS)
                batches, self._batches = self._batches, []
                await self.settlement.settle_published(self.outbox, batches)
        finally:
            self._settling = False

    @property
    def _events(self) -> int:
        return sum(len(batch.verdicts) for batch in self._batches)
