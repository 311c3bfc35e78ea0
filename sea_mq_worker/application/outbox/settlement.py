"""Settlement of claims: writes the verdicts to the outbox and reports them as facts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.row_isolation import RowIsolator, report_refused
from sea_mq_worker.domain.errors import DependencyError, RowsRefusedError
from sea_mq_worker.domain.events import Claim, OutboxEvent, combined
from sea_mq_worker.domain.facts import (
    BatchRelayed,
    EventDied,
    EventPostponed,
    EventPublished,
    EventsPublished,
    LeasesLost,
    Noticed,
)
from sea_mq_worker.domain.outcomes import Died, Postponed, Published, Released, Verdict
from sea_mq_worker.domain.subjects import event_subject
from sea_mq_worker.ports.observer import Observer
from sea_mq_worker.ports.outbox import OutboxRepository

_RETRY_SECONDS = 0.5
_NOTABLE_CLAIMS = 16

_V = TypeVar("_V", bound=Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """A claim whose events are all in the stream; ``seconds``: from the claim to the last acknowledgement."""

    claim: Claim
    verdicts: Sequence[Published]
    claimed_at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Settles claims; retries through a database outage as long as the lease lasts.

    Attributes:
        lease_seconds: after this time another worker may have the claim, so the settlement stops.
    """

    context: str
    observer: Observer
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    lease_seconds: float

    async def settle(
        self, outbox: OutboxRepository, claim: Claim, verdicts: Sequence[Verdict], *, claimed_at: float
    ) -> None:
        """Record every verdict; report the events that another worker has taken over as lost leases."""
        lease_ends = claimed_at + self.lease_seconds
        published = [v for v in verdicts if isinstance(v, Published)]
        others = [v for v in verdicts if not isinstance(v, Published)]
        failed = [v for v in others if isinstance(v, Postponed | Died)]
        released = [v for v in others if isinstance(v, Released)]
        refused: set[str] = set()
        at: dict[str, datetime] = {}
        kept = await self._persist(_noting(outbox, at), claim, published, lease_ends, refused)
        # Events held back go first: while this worker has them, no other worker can claim their head.
        kept |= await self._persist(outbox.release, claim, released, lease_ends, refused)
        kept |= await self._persist(outbox.increment_attempts_batch, claim, failed, lease_ends, refused)
        self._report_lost(verdicts, kept | refused)
        self._report(claim, verdicts, kept, self.clock() - claimed_at, at)

    async def settle_published(self, outbox: OutboxRepository, batches: Sequence["PublishedBatch"]) -> None:
        """Record the published events of several claims by one statement, as long as all leases last."""
        verdicts = [verdict for batch in batches for verdict in batch.verdicts]
        lease_ends = min(batch.claimed_at for batch in batches) + self.lease_seconds
        claim = combined([batch.claim for batch in batches])
        refused: set[str] = set()
        at: dict[str, datetime] = {}
        kept = await self._persist(_noting(outbox, at), claim, verdicts, lease_ends, refused)
        self._report_lost(verdicts, kept | refused)
        for batch in batches:
            self._report(batch.claim, batch.verdicts, kept, batch.seconds, at)

    def _report_lost(self, verdicts: Sequence[Verdict], known: frozenset[str]) -> None:
        if lost := len({verdict.event.id for verdict in verdicts} - known):
            self.observer.observe(LeasesLost(side="outbox", count=lost))

    async def _persist(
        self,
        write: Callable[[Claim, Sequence[_V]], Awaitable[frozenset[str]]],
        claim: Claim,
        verdicts: Sequence[_V],
        lease_ends: float,
        refused: set[str],
    ) -> frozenset[str]:
        """Write until PostgreSQL responds or the lease ends; return the ids that are settled.

        Within the lease no other worker can settle them: an event that a repeat does not find was settled by
        an earlier try whose response was lost. Events that PostgreSQL refuses to change are added to
        ``refused``; they stay leased until the lease ends.
        """
        pieces = RowIsolator(verdicts, lambda part: write(claim, part))
        repeated = False
        while verdicts and self.clock() < lease_ends:
            try:
                await pieces.run()
            except DependencyError as error:
                repeated = True
                self.store_breaker.record_exception(error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self.store_breaker.record_success()
                refused |= self._report_refused(pieces.refused)
                if repeated and self.clock() < lease_ends:
                    return frozenset(verdict.event.id for verdict in verdicts) - refused
                return frozenset().union(*(kept for _, kept in pieces.answers))
        return frozenset()

    def _report_refused(self, refused: Sequence[tuple[Verdict, RowsRefusedError]]) -> frozenset[str]:
        for verdict, error in refused:
            report_refused(self.observer, f"event {verdict.event.id}", error)
        return frozenset(verdict.event.id for verdict, _ in refused)

    def _report(
        self,
        claim: Claim,
        verdicts: Sequence[Verdict],
        kept: frozenset[str],
        seconds: float,
        at: Mapping[str, datetime],
    ) -> None:
        mine = [verdict for verdict in verdicts if verdict.event.id in kept]
        published = [verdict for verdict in mine if isinstance(verdict, Published)]
        if published:
            self.observer.observe(self._published_fact(claim, published, seconds, at))
        others = [verdict for verdict in mine if not isinstance(verdict, Published)]
        for verdict in others:
            self._report_one(verdict)
        self.observer.observe(
            BatchRelayed(
                claimed=len(verdicts),
                published=len(published),
                released=sum(isinstance(verdict, Released) for verdict in others),
                seconds=seconds,
            )
        )

    def _published_fact(
        self, claim: Claim, published: Sequence[Published], seconds: float, at: Mapping[str, datetime]
    ) -> EventsPublished:
        acknowledged_at = claim.at + timedelta(seconds=seconds)  # where the row's time is unknown
        return EventsPublished(
            latencies=[verdict.event.age_seconds + seconds for verdict in published],
            duplicates=sum(verdict.stored.duplicate for verdict in published),
            each=lambda: [
                self._fact(verdict, seconds, at.get(verdict.event.id, acknowledged_at))
                for verdict in published
            ],
        )

    def _fact(self, verdict: Published, seconds: float, published_at: datetime) -> EventPublished:
        event, stored = verdict.event, verdict.stored
        return EventPublished(
            outbox_id=event.id,
            event_type=event.event_type,
            subject=event_subject(self.context, event.event_type, event.event_version),
            published_at=published_at,
            duplicate=stored.duplicate,
            latency_seconds=event.age_seconds + seconds,
        )

    def _report_one(self, verdict: Postponed | Died | Released) -> None:
        match verdict:
            case Postponed(event, error, delay_seconds):
                self.observer.observe(
                    EventPostponed(
                        outbox_id=event.id,
                        event_type=event.event_type,
                        error=error,
                        delay_seconds=delay_seconds,
                        attempts=event.attempts,
                    )
                )
            case Died(event, error):
                self.observer.observe(
                    EventDied(
                        outbox_id=event.id, event_type=event.event_type, error=error, attempts=event.attempts
                    )
                )
            case Released(event) if _is_notable(event.attempts):
                self.observer.observe(Noticed(event="event_not_attempted", text=_not_attempted(event)))
            case Released():
                pass


def _is_notable(claims: int) -> bool:
    """Return whether to report an event that was claimed without an attempt: the 16th, 32nd, 64th time."""
    return claims >= _NOTABLE_CLAIMS and claims.bit_count() == 1


def _not_attempted(event: OutboxEvent) -> str:
    return (
        f"event {event.id} ({event.event_type}) was claimed {event.attempts} times and given back unsent: "
        "see which dependency pauses, and whether a claim can be read and published within "
        "SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS"
    )


def _noting(
    outbox: OutboxRepository, at: dict[str, datetime]
) -> Callable[[Claim, Sequence[Published]], Awaitable[frozenset[str]]]:
    """Record published events, and note when; a lost answer leaves their time unknown."""

    async def write(claim: Claim, verdicts: Sequence[Published]) -> frozenset[str]:
        kept = await outbox.mark_published_batch(claim, verdicts)
        at.update(kept)
        return frozenset(kept)

    return write
