"""Publishes dead letters (CMD-052): no message lost, no duplicate in the dead-letter stream.

The inbox records the intent, the stream confirms the dead letter, the inbox records that, and only then is
the message acknowledged. Inside the deduplication window the stream drops a repeat; a later repeat finds the
recorded intent and searches the stream before it publishes.

``consumer`` decides which messages are dead-lettered, and ``leases`` which are a CONTENT_CONFLICT.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from urllib.parse import quote

from sea_mq_worker.errors import BrokerUnavailableError, RowsRefusedError
from sea_mq_worker.inbox.message import DeadLettered, Lease, LeaseLost
from sea_mq_worker.nats.headers import (
    HEADER_BYTES_MAX,
    MSG_ID,
    header_problem,
    speaks_to_broker,
    subject_problem,
)
from sea_mq_worker.nats.message import (
    InboundMessage,
    OutboundMessage,
    Rejected,
    SearchedId,
    Stored,
    may_be_outside_window,
    search_seconds,
)
from sea_mq_worker.ports import Events, InboxRepository, JetStreamPublisher
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.row_isolation import report_refused

# --- Build dead letters (CMD-052, EVT-047-002), and restore the original headers for a redrive.

_DETAIL_CHARS_MAX = 500
_QUOTED_CHARS_MAX = 1000
_OWN_HEADER_BYTES = 8192
"""Bytes reserved for the dead letter's own headers, including the original subject."""
_ORIGINAL = "Original-"


class Reason(StrEnum):
    """Why a message was dead-lettered; the vocabulary of the ``Dlq-Reason`` header."""

    REJECTED = "REJECTED"
    """The handler answered 422."""
    EXHAUSTED = "EXHAUSTED"
    """The attempts are used up: the worker's own limit, or the server's max_deliver."""
    INVALID_MESSAGE_ID = "INVALID_MESSAGE_ID"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    BAD_SUBJECT = "BAD_SUBJECT"
    CONTENT_CONFLICT = "CONTENT_CONFLICT"
    """The id is already known with another content."""


def conflict_detail(message_id: str) -> str:
    """Return the reason for dead-lettering a message under an id of its own; searches use these words."""
    return f"message id {message_id} is known with another content"


def dead_letter_message(
    source: InboundMessage, *, context: str, message_id: str, reason: str, attempts: int, detail: str
) -> OutboundMessage:
    """Build the message for ``{context}.dlq.{original subject}``; its body is the original's, unchanged.

    Headers that the server would interpret get the prefix ``Original-``. A stream may hold messages that
    cannot be published: a subject with wildcards or too long is quoted and cut, and headers that cannot be
    sent are left out and counted. Otherwise one message could block dead-lettering for all others.
    """
    original = source.subject
    in_header = quote(original) if header_problem("Dlq-Original-Subject", original) else original
    subject = f"{context}.dlq.{original}"
    if subject_problem(subject):
        tokens = quote(original, safe="")[:_QUOTED_CHARS_MAX].split(".")
        subject = f"{context}.dlq.{'.'.join(filter(None, tokens)) or 'blank'}"
    headers = _sendable(source.headers)
    if omitted := len(source.headers) - len(headers):
        headers["Dlq-Headers-Omitted"] = str(omitted)
    one_line = " ".join(detail.split()).replace("\0", "\ufffd")
    headers |= {
        MSG_ID: f"dlq:{source.consumer}:{message_id}",
        "Dlq-Message-Id": message_id,
        "Dlq-Original-Subject": in_header,
        "Dlq-Reason": reason,
        "Dlq-Attempts": str(attempts),
        "Dlq-Detail": one_line[:_DETAIL_CHARS_MAX].strip(),
        "Dlq-Stream": source.stream,
        "Dlq-Stream-Sequence": str(source.seq),
        "Dlq-Consumer": source.consumer,
    }
    return OutboundMessage(id=headers[MSG_ID], subject=subject, payload=source.payload, headers=headers)


def with_new_id(message: OutboundMessage, *, removed_seq: int) -> OutboundMessage:
    """Give a dead letter a new, deterministic id, unlike that of the removed copy at ``removed_seq``."""
    message_id = f"{message.id}:{removed_seq}"
    return message._replace(id=message_id, headers={**message.headers, MSG_ID: message_id})


def headers_only(message: OutboundMessage) -> OutboundMessage:
    """Reduce a dead letter that is too large to its own headers; the original stays in its stream."""
    headers = {name: value for name, value in message.headers.items() if name.startswith(("Dlq-", MSG_ID))}
    headers["Dlq-Body-Omitted"] = str(len(message.payload))
    return OutboundMessage(id=message.id, subject=message.subject, payload=b"", headers=headers)


def original_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the original message."""
    kept = {name: value for name, value in headers.items() if not name.startswith(("Dlq-", "Nats-"))}
    return {name.removeprefix(_ORIGINAL): value for name, value in kept.items()}


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that can be sent, smallest first, up to the size limit."""
    kept = {}
    for name, value in headers.items():
        if not header_problem(name, value):
            reserved = speaks_to_broker(name) or name.lower().startswith(("dlq-", _ORIGINAL.lower()))
            kept[f"{_ORIGINAL}{name}" if reserved else name] = value
    room = HEADER_BYTES_MAX - _OWN_HEADER_BYTES
    for name in sorted(kept, key=lambda name: len(kept[name])):
        room -= len(f"{name}: {kept[name]}\r\n".encode())
        if room < 0:
            del kept[name]
    return kept


# --- Publish them.


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
    events: Events
    breaker: CircuitBreaker
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    lease_seconds: float

    async def dead_letter(
        self, source: InboundMessage, lease: Lease, reason: str, detail: str, stop: asyncio.Event
    ) -> DeadLettered | LeaseLost:
        """Dead-letter a leased message, unless PostgreSQL refuses to change its row."""
        message = dead_letter_message(
            source,
            context=self.context,
            message_id=lease.message_id,
            reason=reason,
            attempts=lease.attempts,
            detail=detail,
        )
        try:
            if not await self._store_and_record(message, lease, reason, detail, stop):
                return LeaseLost()
        except RowsRefusedError as error:
            report_refused(self.events, f"message {lease.message_id}", error)
            return LeaseLost()
        self.events.emit(
            "message_dead_lettered",
            message_id=lease.message_id,
            original_subject=source.subject,
            reason=reason,
            attempts=lease.attempts,
            consumer=source.consumer,
        )
        return DeadLettered()

    async def _store_and_record(
        self, message: OutboundMessage, lease: Lease, reason: str, detail: str, stop: asyncio.Event
    ) -> bool:
        """Store the dead letter and record that; return False where another worker has the lease."""
        intend = partial(self.inbox.begin_dead_letter, lease, reason=reason, detail=detail)
        began_at = recorded_at = self.clock()
        while True:
            if not await call_when_available(intend, breaker=self.store_breaker, stop=stop):
                return False
            begun_ago = lease.dead_letter_begun_seconds_ago + recorded_at - began_at
            fresh_until = recorded_at + self.lease_seconds
            with contextlib.suppress(_LeaseExpiredError):
                if not await self._is_stored(message, begun_ago, stop):
                    publish = partial(self._publish, message, fresh_until)
                    await call_when_available(publish, breaker=self.breaker, stop=stop)
                break
            recorded_at = self.clock()
        kept = await call_when_available(
            lambda: self.inbox.mark_dead_lettered([lease]), breaker=self.store_breaker, stop=stop
        )
        return bool(kept)

    async def _is_stored(self, message: OutboundMessage, begun_ago: float, stop: asyncio.Event) -> bool:
        """Search for the dead letter of an earlier attempt that may be outside the deduplication window."""
        if not begun_ago:
            return False
        window_seconds = await self.publisher.read_duplicate_window()
        if not may_be_outside_window(begun_ago, window_seconds=window_seconds):
            return False
        wanted = SearchedId(message.id, search_seconds(begun_ago), message.subject)
        return await call_when_available(partial(self._finds, wanted), breaker=self.breaker, stop=stop)

    async def _finds(self, wanted: SearchedId) -> bool:
        """Search the stream to its end, in as many parts as necessary."""
        while True:
            result = (await self.publisher.find([wanted]))[wanted.id]
            if isinstance(result, Stored) or result.is_over:
                return isinstance(result, Stored)
            wanted = wanted._replace(looked=result)

    async def _publish(self, message: OutboundMessage, fresh_until: float) -> None:
        """Publish the dead letter, under a new id where the stream remembers only a copy that was removed."""
        while True:
            if self.clock() > fresh_until:
                raise _LeaseExpiredError
            outcome = await self.publisher.publish(message.subject, message.payload, message.headers)
            if isinstance(outcome, Rejected):
                short = headers_only(message)
                outcome = await self.publisher.publish(short.subject, short.payload, short.headers)
            if not isinstance(outcome, Stored):
                raise BrokerUnavailableError(
                    f"the dead-letter stream does not take messages: {outcome.reason}"
                )
            if not outcome.duplicate:
                return
            since = search_seconds(await self.publisher.read_duplicate_window() or -1.0)
            if await self._finds(SearchedId(message.id, since, message.subject)):
                return
            message = with_new_id(message, removed_seq=outcome.seq)
