"""OutboxPublisher: outbox -> JetStream, at least once, and once inside the stream's duplicate window.

The order of steps is the guarantee: claim (which counts the attempt), publish, wait for the stream's
acknowledgement, settle. After a crash in between, the worker publishes the same message id again, and the
stream drops the repeat. An event is settled as published only after the stream has confirmed it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from sea_mq_worker.errors import DependencyError, InvalidEventError, RowsRefusedError, StoreTooSlowError
from sea_mq_worker.nats.headers import too_large, validation_error
from sea_mq_worker.nats.message import (
    FailedTransiently,
    OutboundMessage,
    PublishOutcome,
    Rejected,
    Stored,
    Unknown,
    Unsent,
    may_be_outside_window,
)
from sea_mq_worker.nats.subjects import event_subject
from sea_mq_worker.outbox.event import (
    NOTHING_CLAIMED,
    Claim,
    Died,
    OutboxEvent,
    Postponed,
    Published,
    Released,
    Verdict,
    combined,
)
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.outbox.pace import ClaimSize, MemoryBudget, Pace
from sea_mq_worker.outbox.retry import RetryPolicy, first_wave
from sea_mq_worker.outbox.search import StreamSearches
from sea_mq_worker.ports import JetStreamPublisher, LaneTurn, Observer, OutboxRepository
from sea_mq_worker.runtime.breaker import CircuitBreaker, Permit
from sea_mq_worker.runtime.row_isolation import RowIsolator, report_refused
from sea_mq_worker.runtime.waiting import sleep_or_stop
from sea_mq_worker.telemetry.events import (
    BatchRelayed,
    EventDied,
    EventPostponed,
    EventPublished,
    EventsPublished,
    LeasesLost,
    Noticed,
)

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


# --- Deferred settlements: the published events of several claims at a steady rate are settled together:
#
#
#     claim A, claim B, claim C, ... settle A, B, C
#
# After a crash before the settlement, the events are CLAIMED and in the stream, as after any crash between
# publish and settlement: sent again under their ids when their leases have ended, and dropped as repeats.

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


# --- Publishing of one claim.
# An event of a key is sent only when the stream has the one before; one that is not stored releases the rest.

_WAVES_MAX = 4
"""Waves that are sent one after the other. A batch that keeps its order costs the stream about as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublisher:
    """Publishes claimed events and decides on the outcomes.

    Attributes:
        context: first token of every subject.
        source: CloudEvents source.
        timeout_seconds: time for all publishing of one claim, from the end of the claim or of a search; well
            below the lease.
        searches: progress of the stream searches for possibly published events.
        search_seconds: most time by which reading a claim and a search may move that deadline; a worker that
            stalled for longer sends nothing, because another worker may have the claim.
        hold_dead_keys: a DEAD event holds back the later events of its key.
        session_lost_since: whether others may have taken the worker for gone since a time; then it sends no
            more of an earlier claim, because another worker may have it.
    """

    context: str
    source: str
    publisher: JetStreamPublisher
    policy: RetryPolicy
    broker_breaker: CircuitBreaker
    searches: StreamSearches
    clock: Callable[[], float]
    timeout_seconds: float
    search_seconds: float
    hold_dead_keys: bool
    session_lost_since: Callable[[float], bool]

    async def publish(
        self, events: tuple[OutboxEvent, ...], *, claimed_at: float, stop: asyncio.Event
    ) -> list[Verdict]:
        """Give every event a verdict by the deadline; after a stop, send no further wave.

        The search for possibly published events has a deadline of its own. It comes last, because it may take
        long; the events that it does not find are sent after it.
        """
        results = _Results(hold_dead_keys=self.hold_dead_keys)
        possibly_published = await self._possibly_published(events)
        deadline = self._deadline(claimed_at)
        clear, waiting = _split_searched(possibly_published, events)

        def may_send() -> bool:
            return self.clock() < deadline and not stop.is_set() and not self.session_lost_since(claimed_at)

        asked = await self._send(clear, results, deadline, may_send)
        if waiting and may_send():
            left = await self._look_up(possibly_published, waiting, results)
            deadline = self._deadline(claimed_at)
            asked |= await self._send(left, results, deadline, may_send)
        else:
            for event in waiting:
                results.add(Released(event))
        if not asked:
            self.broker_breaker.release()  # a probe that sent nothing proves nothing
        return results.verdicts

    async def _send(
        self,
        left: Sequence[OutboxEvent],
        results: "_Results",
        deadline: float,
        may_send: Callable[[], bool],
    ) -> bool:
        """Send wave after wave; return whether any message was sent."""
        asked = False
        while left:
            wave, left, in_order = self._next_wave(left)
            in_time = may_send()
            batch = [pair for event in wave if (pair := self._compose(event, results, in_time=in_time))]
            if not batch:
                continue
            messages = [message for _, message in batch]
            outcomes = await self.publisher.publish_batch(
                messages, timeout_seconds=deadline - self.clock(), in_order=in_order
            )
            self._judge_broker(outcomes, results)
            judged = _first_held_back(outcomes)
            for (event, _), outcome in zip(batch[:judged], outcomes[:judged], strict=True):
                results.add(self.policy.judge(event, outcome))
            left = [event for event, _ in batch[judged:]] + left
            asked = True
        return asked

    def _deadline(self, claimed_at: float) -> float:
        return min(self.clock(), claimed_at + self.search_seconds) + self.timeout_seconds

    def _next_wave(
        self, left: Sequence[OutboxEvent]
    ) -> tuple[Sequence[OutboxEvent], list[OutboxEvent], bool]:
        """Return the first event of each key, the rest, and whether the wave has to keep its order.

        Return all events where that takes many waves and the publisher keeps order, unless a replay needs its
        outcome first.
        """
        wave, rest = first_wave(left)
        many = len(left) > _WAVES_MAX * len(wave)
        if many and self.publisher.keeps_order and not any(event.earlier_stream_seq for event in left):
            return left, [], True
        return wave, rest, False

    def _compose(
        self, event: OutboxEvent, results: "_Results", *, in_time: bool
    ) -> tuple[OutboxEvent, OutboundMessage] | None:
        """Make the message, or give the event its verdict; after the deadline only DEAD or Released."""
        if event.ordering_key in results.blocked_keys:
            results.add(Released(event))
            return None
        try:
            message = self._message(event)
        except InvalidEventError as error:
            results.add(Died(event, str(error)))
            return None
        if in_time:
            return event, message
        why = validation_error(message, self.publisher.max_payload)
        results.add(Died(event, why) if why else Released(event))
        return None

    def _message(self, event: OutboxEvent) -> OutboundMessage:
        if event.withheld_bytes:
            raise InvalidEventError(too_large(event.withheld_bytes, self.publisher.max_payload))
        return outbound_message(event, context=self.context, source=self.source)

    async def _possibly_published(self, events: Sequence[OutboxEvent]) -> list[OutboxEvent]:
        """Return repeats that may be outside the deduplication window by the time they are sent."""
        repeats = [event for event in events if event.attempted_seconds_ago]
        if not repeats:
            return []
        window, sending = await self.publisher.read_duplicate_window(), self.timeout_seconds
        return [
            event
            for event in repeats
            if may_be_outside_window(
                event.attempted_seconds_ago, window_seconds=window, sending_seconds=sending
            )
        ]

    async def _look_up(
        self, possibly_published: Sequence[OutboxEvent], events: Sequence[OutboxEvent], results: "_Results"
    ) -> Sequence[OutboxEvent]:
        """Settle possibly published events by the stream's content; return the events to send.

        An unfinished search continues at the event's next claim. It opens no circuit, because the broker
        accepts other events meanwhile.
        """
        searched = await self.searches.look_up(self.publisher, possibly_published)
        for event in possibly_published:
            if stored := searched.found.get(event.id):
                results.add(Published(event, stored))
            elif event.id in searched.unfinished:
                delay = self.policy.backoff.delay_seconds(1 if searched.progressed else event.attempts)
                results.add(Postponed(event, searched.why, delay, failed=False))
        settled = {verdict.event.id for verdict in results.verdicts}
        return [event for event in events if event.id not in settled]

    def _judge_broker(self, outcomes: Sequence[PublishOutcome], results: "_Results") -> None:
        """Open the circuit when nothing was stored, unless the messages themselves were the reason."""
        judged = outcomes[: _first_held_back(outcomes)]
        stored = any(isinstance(outcome, Stored) for outcome in judged)
        trouble = [] if stored else [outcome for outcome in judged if isinstance(outcome, Unknown | Unsent)]
        answered = all(isinstance(outcome, Unknown) and outcome.answered for outcome in trouble)
        if not trouble:
            self.broker_breaker.record_success()
        elif answered and any(isinstance(verdict, Published) for verdict in results.verdicts):
            self.broker_breaker.release()  # a found copy proves no working publish
        else:
            refused = any(isinstance(outcome, Unknown) and outcome.refused for outcome in trouble)
            self.broker_breaker.record_failure(trouble[0].reason, answered=answered, refused=refused)


def _split_searched(
    possibly_published: Sequence[OutboxEvent], events: Sequence[OutboxEvent]
) -> tuple[Sequence[OutboxEvent], Sequence[OutboxEvent]]:
    """Split a claim into events to send at once, and possibly published ones with their keys' events."""
    if not possibly_published:
        return events, ()
    ids = {event.id for event in possibly_published}
    keys = {event.ordering_key for event in possibly_published if event.ordering_key is not None}
    waiting = [event for event in events if event.id in ids or event.ordering_key in keys]
    ids |= {event.id for event in waiting}
    return [event for event in events if event.id not in ids], waiting


def _first_held_back(outcomes: Sequence[PublishOutcome]) -> int:
    """Return the index of the first message that was only held back behind a rejected one, or the length.

    A publisher that keeps order sends nothing behind a message that was not stored. The Unsent tail behind a
    message with a response of its own goes out with the next wave; behind an outage it does not::

        Stored Stored Rejected Unsent Unsent   ->  3: the last two are sent again without the rejected one
        Stored Stored Unknown  Unsent Unsent   ->  5: no response, so an outage: release the last two
        Stored Stored Stored                   ->  3: nothing was held back
        Unsent Unsent                          ->  2: nothing was sent at all
    """
    start = len(outcomes)
    while start and isinstance(outcomes[start - 1], Unsent):
        start -= 1
    last = outcomes[start - 1] if start else None
    own = isinstance(last, Rejected | FailedTransiently) or (isinstance(last, Unknown) and last.answered)
    return start if own else len(outcomes)


@dataclass(slots=True, kw_only=True)
class _Results:
    hold_dead_keys: bool
    verdicts: list[Verdict] = field(default_factory=list)
    blocked_keys: set[str | None] = field(default_factory=set)

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if verdict.event.ordering_key is not None and not self._unblocks_next(verdict):
            self.blocked_keys.add(verdict.event.ordering_key)

    def _unblocks_next(self, verdict: Verdict) -> bool:
        return isinstance(verdict, Published) or (isinstance(verdict, Died) and not self.hold_dead_keys)


_STAND_BY_SECONDS = 1.5
"""Longest wait before the next look whether another worker still serves the lane."""
_YIELD_SECONDS = 2.0
"""Time that a worker which cannot publish leaves the lane to others; each of them looks within it."""
_QUIET_SECONDS = 30.0
"""Longer than an event without an acknowledgement waits for its next attempt."""
_BESIDE_PAYLOAD_MAX = 2**20
"""Bytes of headers, metadata and names that a claim reads beside a payload of the server's max_payload."""
_NOT_CONNECTED = "not connected to NATS"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPublisher:
    """One lane of the outbound side.

    Attributes:
        room: bytes that the claims of all lanes share.
        batch_max: most events of a claim.
        batch_bytes_max: most bytes of all events of a claim.
        batches_max: most claims at a time, so that one is claimed while another is published.
        deferred: settles published events of small claims together; None in the lane with ordering keys,
            where the next event of a key waits for the settlement.
        turn: the worker's turn to claim, if workers take turns.
    """

    outbox: OutboxRepository
    publishing: BatchPublisher
    settlement: Settlement
    deferred: DeferredSettlements | None
    pace: Pace
    broker_breaker: CircuitBreaker
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    room: MemoryBudget
    batch_max: int
    batch_bytes_max: int
    batches_max: int
    turn: LaneTurn | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops, then finish the claims in progress."""
        places = asyncio.Semaphore(self.batches_max)
        size = ClaimSize(self.batch_max, self.batch_bytes_max)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pace.end_with(stop))
            while not stop.is_set():
                await places.acquire()
                await self._wait_for_turn(stop)
                reserved = size.bytes
                await self.room.take(reserved)
                claim, claimed_at = await self._claim(size, stop)
                self.room.give_back(reserved - claim.bytes)
                if claim.events:
                    group.create_task(self._work(claim, claimed_at, places, stop))
                else:
                    places.release()
                if not claim.more:
                    await self.pace.pause(stop, found=bool(claim.events))
            if self.turn:
                await self.turn.leave()

    async def _wait_for_turn(self, stop: asyncio.Event) -> None:
        """Wait until this worker shall claim; while probes of a dependency fail, let others serve the lane.

        If nobody has taken it after a while, nobody else wants it, and this worker probes on.
        """
        if self.turn and self._failing():
            await self.turn.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_YIELD_SECONDS):
                    while not stop.is_set() and (breaker := self._failing()):
                        await breaker.wait_for_probe(unless=stop)
        while self.turn and not stop.is_set() and not await self.turn.take():
            await sleep_or_stop(stop, seconds=self.pace.jittered(_STAND_BY_SECONDS))

    def _failing(self) -> CircuitBreaker | None:
        """Return the circuit of a dependency that failed and then failed a probe, too."""
        return next((each for each in (self.broker_breaker, self.store_breaker) if each.failures > 1), None)

    async def _work(
        self, claim: Claim, claimed_at: float, places: asyncio.Semaphore, stop: asyncio.Event
    ) -> None:
        try:
            is_deferred = await self._publish(claim, claimed_at, stop)
        finally:
            self.room.give_back(claim.bytes)
            places.release()
        if is_deferred and self.deferred:
            await self.deferred.settle(stop)

    async def _publish(self, claim: Claim, claimed_at: float, stop: asyncio.Event) -> bool:
        """Publish a claim and settle it; True if its settlement is deferred."""
        verdicts = await self.publishing.publish(claim.events, claimed_at=claimed_at, stop=stop)
        if self.deferred and not stop.is_set() and self.deferred.take(claim, verdicts, claimed_at=claimed_at):
            return True
        await self.settlement.settle(self.outbox, claim, verdicts, claimed_at=claimed_at)
        if not all(isinstance(verdict, Published) for verdict in verdicts):
            self.pace.expect_retries()
        elif self.deferred is None:
            self.pace.look_again()
        return False

    async def _claim(self, size: ClaimSize, stop: asyncio.Event) -> tuple[Claim, float]:
        """Claim through both circuits: an outage uses up no attempts, and an unanswered probe only one.

        Return the time of the claim itself too, because no lease runs while the lane waits at a circuit.
        """
        if not self.publishing.publisher.connected:
            self.broker_breaker.record_failure(_NOT_CONNECTED)
        broker = await self.broker_breaker.enter(stop)
        if broker is Permit.PROBE and not self.publishing.publisher.connected:
            self.broker_breaker.record_failure(_NOT_CONNECTED)
            return NOTHING_CLAIMED, self.clock()
        store = await self.store_breaker.enter(stop)
        if stop.is_set() or Permit.STOPPED in {broker, store}:
            return NOTHING_CLAIMED, self.clock()
        claimed_at = self.clock()
        probe_batch_max = min(size.events, self.broker_breaker.probe_batch_max)
        claim = await self._find_unpublished(size, probe_batch_max if broker is Permit.PROBE else size.events)
        if broker is Permit.PROBE and not claim.events:
            await self._end_empty_probe()
        return claim, claimed_at

    async def _end_empty_probe(self) -> None:
        """Close the circuit if its only fault was a missing connection, else give the probe back.

        Other workers may have published the events that opened the circuit, and the next one may be late. So
        it also closes when no event has failed for a while, none was refused, and the stream answers.
        """
        breaker = self.broker_breaker
        proven = breaker.reason == _NOT_CONNECTED
        if not (proven or breaker.is_refused) and breaker.quiet_seconds > _QUIET_SECONDS:
            with contextlib.suppress(DependencyError):
                await self.publishing.publisher.find(())
                proven = True
        if proven:
            breaker.record_success()
        else:
            breaker.release()

    async def _find_unpublished(self, size: ClaimSize, batch_max: int) -> Claim:
        """Claim events; after a time-out, the next claim requests half as many, down to one."""
        event_bytes_max = self.publishing.publisher.max_payload + _BESIDE_PAYLOAD_MAX
        try:
            claim = await self.outbox.find_unpublished(
                batch_max=batch_max, bytes_max=size.bytes, event_bytes_max=event_bytes_max
            )
        except DependencyError as error:
            if isinstance(error, StoreTooSlowError):
                size.halve()
            self.store_breaker.record_exception(error)
            return NOTHING_CLAIMED
        self.store_breaker.record_success()
        for event_id, refusal in claim.refused:
            report_refused(self.settlement.observer, f"event {event_id}", refusal)
        size.update(claim)
        return claim
