"""Build dead letters (CMD-052, EVT-047-002), and restore the original headers for a redrive.

``application/inbox/handler_call`` decides which messages are dead-lettered, and
``application/inbox/leases`` which are a CONTENT_CONFLICT.
"""

from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import quote

from sea_mq_worker.domain.encoding import HEADER_BYTES_MAX, header_problem, subject_problem
from sea_mq_worker.domain.headers import MSG_ID, speaks_to_broker
from sea_mq_worker.domain.messages import DeadLetter, OutboundMessage

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


def dead_letter_message(letter: DeadLetter, *, context: str) -> OutboundMessage:
    """Build the message for ``{context}.dlq.{original subject}``; its body is the original's, unchanged.

    Headers that the server would interpret get the prefix ``Original-``. A stream may hold messages that
    cannot be published: a subject with wildcards or too long is quoted and cut, and headers that cannot be
    sent are left out and counted. Otherwise one message could block dead-lettering for all others.
    """
    source = letter.source
    headers = _sendable(source.headers)
    if omitted := len(source.headers) - len(headers):
        headers["Dlq-Headers-Omitted"] = str(omitted)
    headers |= {
        MSG_ID: f"dlq:{source.consumer}:{letter.message_id}",
        "Dlq-Message-Id": letter.message_id,
        "Dlq-Original-Subject": _as_header(letter.original_subject),
        "Dlq-Reason": letter.reason,
        "Dlq-Attempts": str(letter.attempts),
        "Dlq-Detail": _one_line(letter.detail),
        "Dlq-Stream": source.stream,
        "Dlq-Stream-Sequence": str(source.seq),
        "Dlq-Consumer": source.consumer,
    }
    return OutboundMessage(
        id=headers[MSG_ID],
        subject=_subject(context, letter.original_subject),
        payload=source.payload,
        headers=headers,
    )


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


def _subject(context: str, original: str) -> str:
    subject = f"{context}.dlq.{original}"
    return f"{context}.dlq.{_quoted(original)}" if subject_problem(subject) else subject


def _quoted(subject: str) -> str:
    tokens = quote(subject, safe="")[:_QUOTED_CHARS_MAX].split(".")
    return ".".join(filter(None, tokens)) or "blank"


def _as_header(text: str) -> str:
    return quote(text) if header_problem("Dlq-Original-Subject", text) else text


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that can be sent, smallest first, up to the size limit."""
    kept = {_prefixed_name(name): value for name, value in headers.items() if not header_problem(name, value)}
    room = HEADER_BYTES_MAX - _OWN_HEADER_BYTES
    for name in sorted(kept, key=lambda name: len(kept[name])):
        room -= len(f"{name}: {kept[name]}\r\n".encode())
        if room < 0:
            del kept[name]
    return kept


def _prefixed_name(name: str) -> str:
    reserved = speaks_to_broker(name) or name.lower().startswith(("dlq-", _ORIGINAL.lower()))
    return f"{_ORIGINAL}{name}" if reserved else name


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("\0", "\ufffd")[:_DETAIL_CHARS_MAX].strip()
