"""Publishes dead letters (CMD-052): no message lost, no duplicate in the dead-letter stream.

The inbox records the intent, the stream confirms the dead letter, the inbox records that, and only then is
the message acknowledged. Inside the deduplication window the stream drops a repeat; a later repeat finds the
recorded intent and searches the stream before it publishes.

``handler_call`` decides which messages are dead-lettered.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.dedup_window import may_be_outside_window, search_seconds
from sea_mq_worker.application.row_isolation import report_refused
from sea_mq_worker.domain.dead_letters import dead_letter_message, headers_only, with_new_id
from sea_mq_worker.domain.errors import BrokerUnavailableError, RowsRefusedError
from sea_mq_worker.domain.facts import MessageDeadLettered
from sea_mq_worker.domain.inbox_results import Leased
from sea_mq_worker.domain.messages import DeadLetter, OutboundMessage
from sea_mq_worker.domain.outcomes import DeadLettered, LeaseLost, Rejected, Stored
from sea_mq_worker.domain.stream_search import SearchedId
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.jetstream import JetStreamPublisher
from sea_mq_worker.ports.observer import Observer


class _LeaseExpiredError(Exception):
    """The intent was recorded longer ago than a lease lasts, so another worker may have the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPublisher:
    """Publishes messages to the dead-letter stream of ``context``; waits while that stream is away.

    Attributes:
        clock: monotonic seconds.
        lease_seconds: processing lease in the inbox; an intent older than that is recorded again, and the
            stream searched again, before anything is sent, because this worker may have stalled.
    """

    context: str
    inbox: InboxRepository
    publisher: JetStreamPublisher
    observer: Observer
    breaker: CircuitBreaker
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    lease_seconds: float

    async def dead_letter(
        self, letter: DeadLetter, run: Leased, stop: asyncio.Event
    ) -> DeadLettered | LeaseLost:
        """Dead-letter a leased message; leave it to a redelivery where PostgreSQL refuses to change its row.

        Raises:
            StoppedError: the worker stopped while the stream or the inbox was away; it may be dead-lettered.
        """
        try:
            done = await self._dead_letter(letter, run, stop)
        except RowsRefusedError as error:
            report_refused(self.observer, f"message {letter.message_id}", error)
            return LeaseLost()
        if done:
            self._report(letter)
        return DeadLettered() if done else LeaseLost()

    async def _dead_letter(self, letter: DeadLetter, run: Leased, stop: asyncio.Event) -> bool:
        """Store the dead letter and record that; return False where another worker has the lease."""
        message = dead_letter_message(letter, context=self.context)
        began_at = recorded_at = self.clock()
        stored = False
        while not stored:
            if not await self._record_intent(letter, run, stop):
                return False
            begun_ago = run.dead_letter_begun_seconds_ago + recorded_at - began_at
            with contextlib.suppress(_LeaseExpiredError):
                await self._publish_unless_stored(message, begun_ago, recorded_at + self.lease_seconds, stop)
                stored = True
            recorded_at = self.clock()
        kept = await call_when_available(
            lambda: self.inbox.mark_dead_lettered([run.lease]), breaker=self.store_breaker, stop=stop
        )
        return bool(kept)

    async def _record_intent(self, letter: DeadLetter, run: Leased, stop: asyncio.Event) -> bool:
        """Record the intent; return False where another worker has the lease."""
        kept = await call_when_available(
            lambda: self.inbox.begin_dead_letter(run.lease, reason=letter.reason, detail=letter.detail),
            breaker=self.store_breaker,
            stop=stop,
        )
        return bool(kept)

    async def _publish_unless_stored(
        self, message: OutboundMessage, begun_ago: float, fresh_until: float, stop: asyncio.Event
    ) -> None:
        """Publish the dead letter unless the stream has it."""
        if not await self._is_stored(message, begun_ago, stop):
            await call_when_available(
                lambda: self._publish(message, fresh_until), breaker=self.breaker, stop=stop
            )

    async def _is_stored(self, message: OutboundMessage, begun_ago: float, stop: asyncio.Event) -> bool:
        """Search for the dead letter of an earlier attempt that may be outside the deduplication window."""
        if not begun_ago:
            return False
        window_seconds = await self.publisher.read_duplicate_window()
        if not may_be_outside_window(begun_ago, window_seconds=window_seconds):
            return False
        wanted = SearchedId(message.id, search_seconds(begun_ago), message.subject)
        return await call_when_available(lambda: self._finds(wanted), breaker=self.breaker, stop=stop)

    async def _publish(self, message: OutboundMessage, fresh_until: float) -> None:
        """Publish the dead letter, under a new id where the stream remembers only a copy that was removed."""
        stored = await self._store(message, fresh_until)
        while stored.duplicate and not await self._is_in_stream(message):
            message = with_new_id(message, removed_seq=stored.seq)
            stored = await self._store(message, fresh_until)

    async def _is_in_stream(self, message: OutboundMessage) -> bool:
        since = search_seconds(await self.publisher.read_duplicate_window() or -1.0)
        return await self._finds(SearchedId(message.id, since, message.subject))

    async def _finds(self, wanted: SearchedId) -> bool:
        """Search the stream to its end, in as many parts as necessary."""
        while True:
            result = (await self.publisher.find([wanted]))[wanted.id]
            if isinstance(result, Stored) or result.is_over:
                return isinstance(result, Stored)
            wanted = wanted._replace(looked=result)

    async def _store(self, message: OutboundMessage, fresh_until: float) -> Stored:
        if self.clock() > fresh_until:
            raise _LeaseExpiredError
        outcome = await self.publisher.publish(message.subject, message.payload, message.headers)
        if isinstance(outcome, Rejected):
            short = headers_only(message)
            outcome = await self.publisher.publish(short.subject, short.payload, short.headers)
        if not isinstance(outcome, Stored):
            raise BrokerUnavailableError(f"the dead-letter stream does not take messages: {outcome.reason}")
        return outcome

    def _report(self, letter: DeadLetter) -> None:
        self.observer.observe(
            MessageDeadLettered(
                message_id=letter.message_id,
                original_subject=letter.original_subject,
                reason=letter.reason,
                attempts=letter.attempts,
                consumer=letter.source.consumer,
            )
        )
