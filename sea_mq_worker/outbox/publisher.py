"""OutboxPublisher: outbox -> JetStream, at least once, and once inside the stream's duplicate window.

The order of steps is the guarantee::

    claim     _claim     leases due events, and counts the attempt
    publish   _send      sends them, those of a key in order, and waits for the stream's acknowledgements
    judge     Batch.add  gives each event a verdict: Published, Postponed, Released or Died
    settle    _settle    writes the verdicts under the claim, for small claims together

After a crash in between, the worker publishes the same message id again, and the stream drops the repeat. An
event is settled as published only after the stream has confirmed it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from sea_mq_worker.errors import DependencyError, InvalidEventError, StoreTooSlowError
from sea_mq_worker.nats.headers import too_large, validation_error
from sea_mq_worker.nats.message import (
    NOT_CONNECTED,
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
    WHOLE,
    Claim,
    Died,
    OutboxEvent,
    Postponed,
    Published,
    Released,
    Share,
    Verdict,
    combined,
)
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.outbox.pace import ClaimSize, MemoryBudget, Pace
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.outbox.search import StreamSearches
from sea_mq_worker.ports import Events, JetStreamPublisher, KeyShare, OutboxRepository
from sea_mq_worker.runtime.breaker import CircuitBreaker, Permit
from sea_mq_worker.runtime.row_isolation import RowIsolator, report_refused
from sea_mq_worker.runtime.waiting import sleep_or_stop

_LOOK_SECONDS = 1.5
"""Longest wait before a worker that cannot publish looks again whether others serve its keys."""
_STAND_BY_SECONDS = 30.0
"""Time after which it probes with a key all the same."""
_QUIET_SECONDS = 30.0
"""Longer than an event without an acknowledgement waits for its next attempt."""
_BESIDE_PAYLOAD_MAX = 2**20
"""Bytes of headers, metadata and names that a claim reads beside a payload of the server's max_payload."""
_WAVES_MAX = 8
"""Events of a key that are sent in waves: a batch that keeps its order costs about as much."""
_TOGETHER_SECONDS = 0.05
_TOGETHER_MAX = 1000
"""Cap on the events of one settlement; above it each claim waits for its own, and so for the database."""
_SETTLE_AGAIN_SECONDS = 0.5
_NOTABLE_CLAIMS = 16
"""An event that is claimed so often without an attempt is reported; then again at each doubling."""
_V = TypeVar("_V", bound=Verdict)


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """A claim on its way: its events, and the verdicts so far.

    Attributes:
        is_published: no event has another verdict than Published.
        keys: ordering keys of its events.
        may_be_followed: a claim may take later events of its keys: it does not have to search for any.
        following: claims whose events of the same keys are sent before; empty once they are judged.
        judged: every event has its verdict.
        blocked_keys: ordering keys of which no later event may be sent.
        acknowledged_after: seconds from the claim to the last acknowledgement, if the settlement waits for
            others; None: settled at once, and measured then.
    """

    claim: Claim
    claimed_at: float
    hold_dead_keys: bool
    keys: frozenset[str | None] = field(init=False)
    may_be_followed: bool = field(init=False)
    following: Sequence["Batch"] = ()
    judged: asyncio.Event = field(default_factory=asyncio.Event)
    verdicts: list[Verdict] = field(default_factory=list)
    is_published: bool = True
    blocked_keys: set[str] = field(default_factory=set)
    acknowledged_after: float | None = None

    def add(self, verdict: Verdict) -> None:
        """Note a verdict; unless it frees the next event of its key, the key is blocked."""
        self.verdicts.append(verdict)
        if isinstance(verdict, Published):
            return
        self.is_published = False
        key = verdict.event.ordering_key
        if key is not None and not (isinstance(verdict, Died) and not self.hold_dead_keys):
            self.blocked_keys.add(key)

    def __post_init__(self) -> None:
        self.keys = frozenset([event.ordering_key for event in self.claim.events])
        self.may_be_followed = {event.attempted_seconds_ago for event in self.claim.events} == {0.0}

    async def wait_for_earlier(self) -> None:
        """Wait until what it follows is judged; what that did not publish blocks its key here, too."""
        for earlier in self.following:
            if not self.keys.isdisjoint(earlier.keys):
                await earlier.judged.wait()
                self.blocked_keys |= earlier.blocked_keys & self.keys
        self.following = ()

    def drop_content(self) -> None:
        """Keep of a published batch what its later settlement needs; its bytes are not counted by then."""
        self.verdicts = [v._replace(event=v.event.without_content()) for v in self.published]
        self.claim = replace(self.claim, events=tuple(verdict.event for verdict in self.verdicts))

    @property
    def published(self) -> list[Published]:
        return [verdict for verdict in self.verdicts if isinstance(verdict, Published)]


@dataclass(slots=True, kw_only=True)
class OutboxPublisher:
    """One lane of the outbound side.

    Attributes:
        context: first token of every subject.
        source: CloudEvents source.
        searches: progress of the stream searches for possibly published events.
        room: bytes that the claims of all lanes share.
        batch_max: most events of a claim.
        batch_bytes_max: most bytes of all events of a claim.
        batches_max: most claims at a time, so that one is claimed while another is published.
        lease_seconds: after this time another worker may have a claim, so its settlement stops.
        publish_seconds: time for all publishing of one claim, from the end of the claim or of a search; well
            below the lease.
        delay_max_seconds: most time by which reading a claim and a search may move that deadline; a worker
            that stalled for longer sends nothing, because another worker may have the claim.
        hold_dead_keys: a DEAD event holds back the later events of its key.
        session_lost_since: whether others may have taken the worker for gone since a time; an earlier claim
            may be another worker's then, so no more of it is sent.
        ordered: the lane with ordering keys.
        share: the worker's share of the ordering keys; None: it has all.
    """

    context: str
    source: str
    outbox: OutboxRepository
    publisher: JetStreamPublisher
    policy: RetryPolicy
    searches: StreamSearches
    events: Events
    pace: Pace
    broker_breaker: CircuitBreaker
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    room: MemoryBudget
    batch_max: int
    batch_bytes_max: int
    batches_max: int
    lease_seconds: float
    publish_seconds: float
    delay_max_seconds: float
    hold_dead_keys: bool
    session_lost_since: Callable[[float], bool]
    ordered: bool
    share: KeyShare | None = None
    _unsettled: list[Batch] = field(default_factory=list, init=False)
    _in_hand: list[Batch] = field(default_factory=list, init=False)
    _is_settling: bool = field(default=False, init=False)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops, then finish the claims in progress."""
        places = asyncio.Semaphore(self.batches_max)
        size = ClaimSize(self.batch_max, self.batch_bytes_max)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pace.end_with(stop))
            while not stop.is_set():
                await places.acquire()
                share = await self._take_share(stop)
                reserved = size.bytes
                await self.room.take(reserved)
                following = [batch for batch in self._in_hand if batch.may_be_followed]
                claim, claimed_at = await self._claim(
                    size, stop, following=[batch.claim for batch in following], share=share
                )
                self.room.give_back(reserved - claim.bytes)
                if claim.events:
                    batch = Batch(
                        claim=claim,
                        claimed_at=claimed_at,
                        hold_dead_keys=self.hold_dead_keys,
                        following=following,
                    )
                    if self.ordered:
                        self._in_hand.append(batch)
                    group.create_task(self._work(batch, places, stop))
                else:
                    places.release()
                if not claim.more:
                    await self.pace.pause(stop, found=bool(claim.events))
            if self.share:
                await self.share.leave()

    async def _work(self, batch: Batch, places: asyncio.Semaphore, stop: asyncio.Event) -> None:
        size = batch.claim.bytes
        try:
            await batch.wait_for_earlier()
            await self._publish(batch, stop)
            batch.judged.set()
            settles_later = not stop.is_set() and self._may_settle_later(batch)
            if settles_later:
                batch.acknowledged_after = self.clock() - batch.claimed_at
                batch.drop_content()
                self._unsettled.append(batch)
            else:
                await self._settle([batch])
                if not batch.is_published:
                    self.pace.expect_retries()
        finally:
            self.room.give_back(size)
            places.release()
        if settles_later:
            await self._settle_later(stop)

    # --- claim

    async def _take_share(self, stop: asyncio.Event) -> Share:
        """Take the share of this worker; while probes of a dependency fail, leave all keys to others, if any.

        Every half minute it probes with one of its keys: nothing else may show that it is well.
        """
        if self.share is None:
            return WHOLE
        probe_at = self.clock() + _STAND_BY_SECONDS
        while self._failing() and not stop.is_set():
            share = await self.share.take(serves=False)
            if share.workers == 1 or self.clock() >= probe_at:
                return share
            await sleep_or_stop(stop, seconds=self.pace.jittered(_LOOK_SECONDS))
        return await self.share.take(serves=True)

    def _failing(self) -> bool:
        """Whether a dependency failed and then failed a probe, too."""
        return any(each.failures > 1 for each in (self.broker_breaker, self.store_breaker))

    async def _claim(
        self, size: ClaimSize, stop: asyncio.Event, *, following: Sequence[Claim], share: Share
    ) -> tuple[Claim, float]:
        """Claim through both circuits: an outage uses up no attempts, and an unanswered probe only one.

        After a time-out, the next claim requests half as many events, down to one. Return the time of the
        claim itself too, because no lease runs while the lane waits at a circuit.
        """
        if not self.publisher.connected:
            self.broker_breaker.record_failure(NOT_CONNECTED)
        broker = await self.broker_breaker.enter(stop)
        if broker is Permit.PROBE and not self.publisher.connected:
            self.broker_breaker.record_failure(NOT_CONNECTED)
            return NOTHING_CLAIMED, self.clock()
        store = await self.store_breaker.enter(stop)
        claimed_at = self.clock()
        if stop.is_set() or Permit.STOPPED in {broker, store}:
            return NOTHING_CLAIMED, claimed_at
        is_probe = broker is Permit.PROBE
        claim = NOTHING_CLAIMED
        try:
            claim = await self.outbox.find_unpublished(
                batch_max=min(size.events, self.broker_breaker.probe_batch_max) if is_probe else size.events,
                bytes_max=size.bytes,
                event_bytes_max=self.publisher.max_payload + _BESIDE_PAYLOAD_MAX,
                following=following,
                share=share,
            )
        except DependencyError as error:
            if isinstance(error, StoreTooSlowError):
                size.halve()
            self.store_breaker.record_exception(error)
        else:
            self.store_breaker.record_success()
            for event_id, refusal in claim.refused:
                report_refused(self.events, f"event {event_id}", refusal)
            size.update(claim)
        if is_probe and not claim.events:
            await self._end_empty_probe()
        return claim, claimed_at

    async def _end_empty_probe(self) -> None:
        """Close the circuit if its only fault was a missing connection, else give the probe back.

        Other workers may have published the events that opened the circuit, and the next one may be late. So
        it also closes when no event has failed for a while, none was refused, and the stream answers.
        """
        breaker = self.broker_breaker
        proven = breaker.reason == NOT_CONNECTED
        if not (proven or breaker.is_refused) and breaker.quiet_seconds > _QUIET_SECONDS:
            with contextlib.suppress(DependencyError):
                await self.publisher.find(())
                proven = True
        if proven:
            breaker.record_success()
        else:
            breaker.release()

    # --- publish, and judge
    # The stream never gets an event of a key before the one ahead of it: it is sent after that one's
    # acknowledgement, or with it in a batch that keeps its order. An event that is not stored releases those
    # behind it; only a dead one may let them pass (hold_dead_keys).

    async def _publish(self, batch: Batch, stop: asyncio.Event) -> None:
        """Give every event a verdict by the deadline; after a stop, send no further wave.

        First send what needs no search. Then search the stream for the possibly published events, and send
        what it does not have, by a new deadline, because the search may have used up the first.
        """
        possible = await self._possibly_published(batch.claim.events)
        deadline = self._deadline(batch)
        at_once, after_search = _split_searched(possible, batch.claim.events)
        has_sent = await self._send(batch, at_once, deadline, stop)
        if after_search and self._may_send(batch, deadline, stop):
            to_send = await self._look_up(batch, possible, after_search)
            has_sent |= await self._send(batch, to_send, self._deadline(batch), stop)
        else:
            for event in after_search:
                batch.add(Released(event))
        if not has_sent:
            self.broker_breaker.release()  # a probe that sent nothing proves nothing

    async def _send(
        self, batch: Batch, events: Sequence[OutboxEvent], deadline: float, stop: asyncio.Event
    ) -> bool:
        """Send wave after wave; return whether any message was sent."""
        left, has_sent = events, False
        while left:
            wave, left, in_order = self._next_wave(left)
            in_time = self._may_send(batch, deadline, stop)
            sent = [pair for event in wave if (pair := self._compose(batch, event, in_time=in_time))]
            if not sent:
                continue
            outcomes = await self.publisher.publish_batch(
                [message for _, message in sent], timeout_seconds=deadline - self.clock(), in_order=in_order
            )
            judged = _first_held_back(outcomes)
            self._judge_broker(batch, outcomes[:judged])
            for (event, _), outcome in zip(sent[:judged], outcomes[:judged], strict=True):
                batch.add(self.policy.judge(event, outcome))
            left = [event for event, _ in sent[judged:]] + left
            has_sent = True
        return has_sent

    def _deadline(self, batch: Batch) -> float:
        """Return when sending must end: ``publish_seconds`` from now, as long as the claim is young.

        The start counts as at most ``delay_max_seconds`` after the claim, so that a worker that stalled for
        longer gets a time in the past.
        """
        return min(self.clock(), batch.claimed_at + self.delay_max_seconds) + self.publish_seconds

    def _may_send(self, batch: Batch, deadline: float, stop: asyncio.Event) -> bool:
        in_time = self.clock() < deadline and not stop.is_set()
        return in_time and not self.session_lost_since(batch.claimed_at)

    def _next_wave(
        self, left: Sequence[OutboxEvent]
    ) -> tuple[Sequence[OutboxEvent], list[OutboxEvent], bool]:
        """Return the first event of each key, the rest, and whether the wave has to keep its order.

        Return all events where a key has many and the publisher keeps order, unless a replay needs its
        outcome first.
        """
        wave, rest = first_wave(left)
        if len(rest) < _WAVES_MAX:  # no key has more
            return wave, rest, False
        [(_, waves)] = Counter(event.ordering_key for event in rest).most_common(1)
        replayed = any(event.earlier_stream_seq for event in left)
        if waves >= _WAVES_MAX and self.publisher.keeps_order and not replayed:
            return left, [], True
        return wave, rest, False

    def _compose(
        self, batch: Batch, event: OutboxEvent, *, in_time: bool
    ) -> tuple[OutboxEvent, OutboundMessage] | None:
        """Make the message, or give the event its verdict; after the deadline only DEAD or Released."""
        if event.ordering_key in batch.blocked_keys:
            batch.add(Released(event))
            return None
        if event.withheld_bytes:
            batch.add(Died(event, too_large(event.withheld_bytes, self.publisher.max_payload)))
            return None
        try:
            message = outbound_message(event, context=self.context, source=self.source)
        except InvalidEventError as error:
            batch.add(Died(event, str(error)))
            return None
        if in_time:
            return event, message
        why = validation_error(message, self.publisher.max_payload)
        batch.add(Died(event, why) if why else Released(event))
        return None

    async def _possibly_published(self, events: Sequence[OutboxEvent]) -> list[OutboxEvent]:
        """Return the repeats of which the stream may have a copy, but no longer drop another one as it."""
        repeats = [event for event in events if event.attempted_seconds_ago]
        if not repeats:
            return []
        window, sending = await self.publisher.read_duplicate_window(), self.publish_seconds
        return [
            event
            for event in repeats
            if may_be_outside_window(
                event.attempted_seconds_ago, window_seconds=window, sending_seconds=sending
            )
        ]

    async def _look_up(
        self, batch: Batch, possible: Sequence[OutboxEvent], events: Sequence[OutboxEvent]
    ) -> Sequence[OutboxEvent]:
        """Judge the possibly published of the events by the stream's content; return the events to send.

        An unfinished search continues at the event's next claim. It opens no circuit, because the broker
        accepts other events meanwhile.
        """
        searched = await self.searches.look_up(self.publisher, possible)
        for event in possible:
            if stored := searched.found.get(event.id):
                batch.add(Published(event, stored))
            elif event.id in searched.unfinished:
                delay = self.policy.backoff.delay_seconds(1 if searched.progressed else event.attempts)
                batch.add(Postponed(event, searched.why, delay, failed=False))
        judged = {verdict.event.id for verdict in batch.verdicts}
        return [event for event in events if event.id not in judged]

    def _judge_broker(self, batch: Batch, outcomes: Sequence[PublishOutcome]) -> None:
        """Open the circuit when nothing was stored, unless the messages themselves were the reason."""
        if any(isinstance(outcome, Stored) for outcome in outcomes):
            self.broker_breaker.record_success()
            return
        trouble = [outcome for outcome in outcomes if isinstance(outcome, Unknown | Unsent)]
        if not trouble:
            self.broker_breaker.record_success()
            return
        answered = all(isinstance(outcome, Unknown) and outcome.answered for outcome in trouble)
        if answered and batch.published:
            # No outage: an earlier wave was stored, and has closed the circuit, or the search found a copy,
            # which does not prove that the stream stores anything now.
            self.broker_breaker.release()
            return
        refused = any(isinstance(outcome, Unknown) and outcome.refused for outcome in trouble)
        self.broker_breaker.record_failure(trouble[0].reason, answered=answered, refused=refused)

    # --- settle

    def _may_settle_later(self, batch: Batch) -> bool:
        """Whether the settlement may wait for others.

        It may not while a backlog keeps claims large anyway, with a verdict or a retry that others may wait
        for, and in the second half of the lease, which is kept for a database that does not answer.
        """
        seconds = self.clock() - batch.claimed_at
        waiting = sum(len(each.verdicts) for each in self._unsettled)
        return (
            not batch.claim.more
            and batch.is_published
            and not (self.ordered and any(event.attempts > 1 for event in batch.claim.events))
            and waiting + len(batch.verdicts) <= _TOGETHER_MAX
            and seconds + _TOGETHER_SECONDS <= self.lease_seconds / 2
        )

    async def _settle_later(self, stop: asyncio.Event) -> None:
        """Settle small claims together, a short time later; at once when the worker stops.

        The first of several callers settles for all::

            ms   0        6        12       18  ...  50
                 claim A  claim B  claim C           settle A, B, C, ... together

        After a crash before the settlement, the events are CLAIMED and in the stream, as after any crash
        between publish and settlement.
        """
        if self._is_settling:
            return
        self._is_settling = True
        try:
            while self._unsettled:
                await sleep_or_stop(stop, seconds=_TOGETHER_SECONDS)
                batches, self._unsettled = self._unsettled, []
                await self._settle(batches)
        finally:
            self._is_settling = False

    async def _settle(self, batches: Sequence[Batch]) -> None:
        """Write all verdicts while every lease lasts; report them, and the leases that were lost."""
        claim = combined([batch.claim for batch in batches])
        claimed_at = min(batch.claimed_at for batch in batches)
        verdicts = [verdict for batch in batches for verdict in batch.verdicts]
        published = [verdict for verdict in verdicts if isinstance(verdict, Published)]
        released = [verdict for verdict in verdicts if isinstance(verdict, Released)]
        rest = [verdict for verdict in verdicts if isinstance(verdict, Postponed | Died)]
        refused: set[str] = set()
        kept = await self._persist(self.outbox.mark_published_batch, claim, published, claimed_at, refused)
        # Release before the head of a key is postponed: while it is CLAIMED, nobody can claim of the key, so
        # the next claim gets the whole run, and not the head alone.
        kept |= await self._persist(self.outbox.release, claim, released, claimed_at, refused)
        kept |= await self._persist(self.outbox.increment_attempts_batch, claim, rest, claimed_at, refused)
        if lost := len({verdict.event.id for verdict in verdicts} - kept.keys() - refused):
            self.events.emit("leases_lost", side="outbox", count=lost)
        self._in_hand = [batch for batch in self._in_hand if batch not in batches]
        if self.outbox.has_freed:
            self.pace.look_again()
        for batch in batches:
            seconds = batch.acknowledged_after
            self._report(batch, kept, self.clock() - batch.claimed_at if seconds is None else seconds)

    async def _persist(
        self,
        write: Callable[[Claim, Sequence[_V]], Awaitable[Mapping[str, datetime] | frozenset[str]]],
        claim: Claim,
        verdicts: Sequence[_V],
        claimed_at: float,
        refused: set[str],
    ) -> dict[str, datetime | None]:
        """Write until PostgreSQL responds or the lease ends; return the ids that are settled, and when.

        Events that PostgreSQL refuses to change are added to ``refused``; they stay leased until the lease
        ends.
        """
        lease_ends = claimed_at + self.lease_seconds
        pieces = RowIsolator(verdicts, lambda part: write(claim, part))
        repeated = False
        while verdicts and self.clock() < lease_ends:
            try:
                await pieces.run()
            except DependencyError as error:
                repeated = True
                self.store_breaker.record_exception(error)
                await asyncio.sleep(_SETTLE_AGAIN_SECONDS)
            else:
                self.store_breaker.record_success()
                break
        for verdict, refusal in pieces.refused:
            report_refused(self.events, f"event {verdict.event.id}", refusal)
            refused.add(verdict.event.id)
        kept: dict[str, datetime | None] = {}
        for _, answer in pieces.answers:
            kept |= answer if isinstance(answer, Mapping) else dict.fromkeys(answer)
        if repeated and self.clock() < lease_ends and not self.session_lost_since(claimed_at):
            # No other worker can have settled them, so an event that the repeat did not find was settled by
            # an earlier try whose answer was lost, at a time that is not known.
            return {v.event.id: kept.get(v.event.id) for v in verdicts if v.event.id not in refused}
        return kept

    # --- report

    def _report(self, batch: Batch, kept: Mapping[str, datetime | None], seconds: float) -> None:
        mine = [verdict for verdict in batch.verdicts if verdict.event.id in kept]
        published = [verdict for verdict in mine if isinstance(verdict, Published)]
        others = [verdict for verdict in mine if not isinstance(verdict, Published)]
        if published:
            acknowledged_at = batch.claim.at + timedelta(seconds=seconds)  # where the row's time is unknown

            def each() -> list[dict[str, object]]:
                return [
                    {
                        "outbox_id": event.id,
                        "event_type": event.event_type,
                        "subject": event_subject(self.context, event.event_type, event.event_version),
                        "published_at": kept[event.id] or acknowledged_at,
                        "duplicate": stored.duplicate,
                        "latency_seconds": event.age_seconds + seconds,
                    }
                    for event, stored in published
                ]

            self.events.emit(
                "event_published",
                count=len(published),
                latencies=[verdict.event.age_seconds + seconds for verdict in published],
                duplicates=sum([verdict.stored.duplicate for verdict in published]),
                each=each,
            )
        for verdict in others:
            self._report_unpublished(verdict)
        self.events.emit(
            "batch_relayed",
            claimed=len(batch.verdicts),
            published=len(published),
            released=sum(isinstance(verdict, Released) for verdict in others),
            seconds=seconds,
        )

    def _report_unpublished(self, verdict: Postponed | Died | Released) -> None:
        event = verdict.event
        about = {"outbox_id": event.id, "event_type": event.event_type}
        match verdict:
            case Postponed(_, error, delay):
                self.events.emit(
                    "event_postponed", **about, error=error, delay_seconds=delay, attempts=event.attempts
                )
            case Died(_, error):
                self.events.emit("event_died", **about, error=error, attempts=event.attempts)
            case Released():
                is_power_of_two = event.attempts.bit_count() == 1
                if event.attempts >= _NOTABLE_CLAIMS and is_power_of_two:
                    text = (
                        f"event {event.id} ({event.event_type}) was claimed {event.attempts} times and given "
                        "back unsent: see which dependency pauses, and whether a claim can be read and "
                        "published within SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS"
                    )
                    self.events.emit("event_not_attempted", text=text)
            case _:
                assert_never(verdict)


def first_wave(events: Sequence[OutboxEvent]) -> tuple[list[OutboxEvent], list[OutboxEvent]]:
    """Split events into those that may be sent concurrently, the first of each key, and those behind them."""
    keys: set[str] = set()
    wave: list[OutboxEvent] = []
    rest: list[OutboxEvent] = []
    for event in events:
        if event.ordering_key in keys:
            rest.append(event)
            continue
        wave.append(event)
        if event.ordering_key is not None:
            keys.add(event.ordering_key)
    return wave, rest


def _split_searched(
    possible: Sequence[OutboxEvent], events: Sequence[OutboxEvent]
) -> tuple[Sequence[OutboxEvent], Sequence[OutboxEvent]]:
    """Split a claim: what to send at once; the possibly published, with all events of their keys."""
    if not possible:
        return events, ()
    ids = {event.id for event in possible}
    keys = {event.ordering_key for event in possible if event.ordering_key is not None}
    at_once: list[OutboxEvent] = []
    after_search: list[OutboxEvent] = []
    for event in events:
        waits = event.id in ids or event.ordering_key in keys
        (after_search if waits else at_once).append(event)
    return at_once, after_search


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
