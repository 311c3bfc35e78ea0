"""Dead letters: CMD-052 and EVT-047-002, and back again for a redrive."""

from collections.abc import Mapping
from enum import StrEnum

from sea_mq_worker.domain.headers import MSG_ID
from sea_mq_worker.domain.messages import DeadLetter, OutboundMessage

_DETAIL_CHARS_MAX = 500
_ORIGINAL = "Original-"


class Reason(StrEnum):
    """Why a message was dead-lettered; the vocabulary of the ``Dlq-Reason`` header."""

    REJECTED = "REJECTED"
    """The handler answered 422."""
    EXHAUSTED = "EXHAUSTED"
    """Its attempts are spent, the worker's own or the server's max_deliver."""
    INVALID_MESSAGE_ID = "INVALID_MESSAGE_ID"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    BAD_SUBJECT = "BAD_SUBJECT"
    CONTENT_CONFLICT = "CONTENT_CONFLICT"
    """Its id is known with another content."""


def dead_letter_message(letter: DeadLetter, *, context: str) -> OutboundMessage:
    """Make the message for ``{context}.dlq.{original subject}``; its body is the original's, untouched.

    Headers that would speak to the server are kept under ``Original-``.
    """
    source = letter.source
    headers = {_shelved(name): value for name, value in source.headers.items()}
    headers |= {
        MSG_ID: f"dlq:{source.consumer}:{letter.message_id}",
        "Dlq-Message-Id": letter.message_id,
        "Dlq-Original-Subject": letter.original_subject,
        "Dlq-Reason": letter.reason,
        "Dlq-Attempts": str(letter.attempts),
        "Dlq-Detail": _one_line(letter.detail),
        "Dlq-Stream": source.stream,
        "Dlq-Stream-Sequence": str(source.seq),
        "Dlq-Consumer": source.consumer,
    }
    return OutboundMessage(
        id=headers[MSG_ID],
        subject=f"{context}.dlq.{letter.original_subject}",
        payload=source.payload,
        headers=headers,
    )


def without_body(message: OutboundMessage) -> OutboundMessage:
    """Shorten a dead letter that is too large with its headers; the original stays in its stream."""
    headers = {name: value for name, value in message.headers.items() if name.startswith(("Dlq-", MSG_ID))}
    headers["Dlq-Body-Omitted"] = str(len(message.payload))
    return OutboundMessage(id=message.id, subject=message.subject, payload=b"", headers=headers)


def original_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Give back the headers that the original message had."""
    kept = {name: value for name, value in headers.items() if not name.startswith(("Dlq-", "Nats-"))}
    return {name.removeprefix(_ORIGINAL): value for name, value in kept.items()}


def _shelved(name: str) -> str:
    return f"{_ORIGINAL}{name}" if name.lower().startswith(("nats-", "dlq-")) else name


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL_CHARS_MAX]
