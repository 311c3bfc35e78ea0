"""Publishing of one claim: the order of its events, and a verdict for each.

Events of one ordering key are published one after the other, each only when the stream has the one before.
The first event that is not stored releases the rest of its key, and no other event.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.dedup_window import StreamSearches, may_be_outside_window
from sea_mq_worker.domain.encoding import too_large, validation_error
from sea_mq_worker.domain.errors import InvalidEventError
from sea_mq_worker.domain.events import OutboxEvent
from sea_mq_worker.domain.headers import outbound_message
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import (
    Died,
    FailedTransiently,
    Postponed,
    Published,
    PublishOutcome,
    Rejected,
    Released,
    Stored,
    Unknown,
    Unsent,
    Verdict,
)
from sea_mq_worker.domain.retry import RetryPolicy, first_wave
from sea_mq_worker.ports.jetstream import JetStreamPublisher

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
