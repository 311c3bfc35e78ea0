"""One claim's way through the broker: which events go out in which order, and what becomes of each.

Events of one ordering key go out one after the other, the next only when the stream has the one before;
the first that does not get through sends the rest of its key back, and nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.dedup_window import StreamSearches, may_be_outside_window
from sea_mq_worker.domain.encoding import too_large, validation_error
from sea_mq_worker.domain.errors import InvalidEventError
from sea_mq_worker.domain.events import ClaimedEvent
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublisher:
    """Publishes claimed events and judges the answers.

    Attributes:
        context: first token of every subject.
        source: CloudEvents source.
        timeout_seconds: deadline of all publishing of one claim, from when the claim is in hand or from the
            end of a search on; well below the lease.
        searches: how far the stream was searched for doubtful events.
        search_seconds: by how much reading a claim and a search for doubtful events may move that deadline; a
            worker that stalled for longer sends nothing, because its claim is no longer its own.
        hold_dead_keys: an event that dies holds back the later ones of its key.
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

    async def publish(
        self, events: tuple[ClaimedEvent, ...], *, claimed_at: float, stop: asyncio.Event
    ) -> list[Verdict]:
        """Give every event a verdict by the deadline; asked to stop, send no further wave.

        A search for doubtful events has a deadline of its own. It comes last, for it may take long; what the
        stream has not is sent after it.
        """
        results = _Results(hold_dead_keys=self.hold_dead_keys)
        deadline = self._deadline(claimed_at)
        possibly_published = self._possibly_published(events)
        clear, waiting = _apart(possibly_published, events)
        asked = await self._send(clear, results, deadline, stop)
        if waiting and self.clock() < deadline and not stop.is_set():
            left = await self._look_up(possibly_published, waiting, results)
            deadline = self._deadline(claimed_at)
            asked |= await self._send(left, results, deadline, stop)
        else:
            for event in waiting:
                results.add(Released(event))
        if not asked:
            self.broker_breaker.release()  # a probe that sent nothing has learnt nothing
        return results.verdicts

    async def _send(
        self, left: Sequence[ClaimedEvent], results: "_Results", deadline: float, stop: asyncio.Event
    ) -> bool:
        """Send wave after wave; return whether the broker was asked for anything."""
        asked = False
        while left:
            wave, left = self._next_wave(left)
            in_time = self.clock() < deadline and not stop.is_set()
            batch = [pair for event in wave if (pair := self._compose(event, results, in_time=in_time))]
            if not batch:
                continue
            messages = [message for _, message in batch]
            outcomes = await self.publisher.publish_batch(messages, timeout_seconds=deadline - self.clock())
            self._judge_broker(outcomes, results)
            judged = _first_held_back(outcomes)
            for (event, _), outcome in zip(batch[:judged], outcomes[:judged], strict=True):
                results.add(self.policy.judge(event, outcome))
            left = [event for event, _ in batch[judged:]] + left
            asked = True
        return asked

    def _deadline(self, claimed_at: float) -> float:
        return min(self.clock(), claimed_at + self.search_seconds) + self.timeout_seconds

    def _next_wave(self, left: Sequence[ClaimedEvent]) -> tuple[Sequence[ClaimedEvent], list[ClaimedEvent]]:
        """All where the publisher keeps order; but a replay must be judged before what follows it."""
        if self.publisher.keeps_order and not any(event.earlier_stream_seq for event in left):
            return left, []
        return first_wave(left)

    def _compose(
        self, event: ClaimedEvent, results: "_Results", *, in_time: bool
    ) -> tuple[ClaimedEvent, OutboundMessage] | None:
        """Make the message, or give the event its verdict at once; time saves none that can never be sent."""
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

    def _message(self, event: ClaimedEvent) -> OutboundMessage:
        if event.withheld_bytes:
            raise InvalidEventError(too_large(event.withheld_bytes, self.publisher.max_payload))
        return outbound_message(event, context=self.context, source=self.source)

    def _possibly_published(self, events: Sequence[ClaimedEvent]) -> list[ClaimedEvent]:
        """Return repeats that the duplicate window may have forgotten by the time they are sent."""
        window, sending = self.publisher.duplicate_window_seconds, self.timeout_seconds
        return [
            event
            for event in events
            if event.attempted_seconds_ago  # no call for what nearly all are
            and may_be_outside_window(
                event.attempted_seconds_ago, window_seconds=window, sending_seconds=sending
            )
        ]

    async def _look_up(
        self, possibly_published: Sequence[ClaimedEvent], events: Sequence[ClaimedEvent], results: "_Results"
    ) -> Sequence[ClaimedEvent]:
        """Settle doubtful events by what the stream really holds; return those that are to be sent.

        A search that has not ended goes on at the event's next claim. That closes no gate: the broker takes
        all else meanwhile.
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
        """Close the gate when nothing got through, except where that lay with the messages themselves."""
        judged = outcomes[: _first_held_back(outcomes)]
        stored = any(isinstance(outcome, Stored) for outcome in judged)
        trouble = [] if stored else [outcome for outcome in judged if isinstance(outcome, Unknown | Unsent)]
        answered = all(isinstance(outcome, Unknown) and outcome.answered for outcome in trouble)
        if not trouble:
            self.broker_breaker.record_success()
        elif answered and any(isinstance(verdict, Published) for verdict in results.verdicts):
            self.broker_breaker.release()  # where all good news is that an event was found, it is still shut
        else:
            self.broker_breaker.record_failure(trouble[0].reason, answered=answered)


def _apart(
    possibly_published: Sequence[ClaimedEvent], events: Sequence[ClaimedEvent]
) -> tuple[Sequence[ClaimedEvent], Sequence[ClaimedEvent]]:
    """Split a claim into what can be sent at once, and what is doubtful or shares a key with such."""
    if not possibly_published:
        return events, ()
    ids = {event.id for event in possibly_published}
    keys = {event.ordering_key for event in possibly_published if event.ordering_key is not None}
    waiting = [event for event in events if event.id in ids or event.ordering_key in keys]
    ids |= {event.id for event in waiting}
    return [event for event in events if event.id not in ids], waiting


def _first_held_back(outcomes: Sequence[PublishOutcome]) -> int:
    """Return where those begin that were only held back behind one with an answer of its own, or the end."""
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
        if verdict.event.ordering_key is not None and not self._lets_next_go(verdict):
            self.blocked_keys.add(verdict.event.ordering_key)

    def _lets_next_go(self, verdict: Verdict) -> bool:
        return isinstance(verdict, Published) or (isinstance(verdict, Died) and not self.hold_dead_keys)
