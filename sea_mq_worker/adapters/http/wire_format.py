"""Encodes requests to the handler, and reads its answers (SDS-047, handler contract)."""

import json
import math
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from json.encoder import encode_basestring_ascii as _text
from typing import NamedTuple

from sea_mq_worker.domain.messages import HandlerRequest

_SECONDS = re.compile(r"[0-9]{1,9}")
_SECONDS_MAX = 31_536_000
_PROBLEM_CHARS_MAX = 120
_ERRORS_MAX = 5
_STATUSES = range(100, 600)


def request_body(request: HandlerRequest) -> tuple[bytes, bytes, bytes]:
    """Write SDS-047's JSON in its order; the payload is a part of its own, untouched and not copied.

    Only the strings are encoded: encoding the whole object takes ten times as long.
    """
    head = (
        f'{{"message_id": {_text(request.message_id)}'
        f', "subject": {_text(request.subject)}'
        f', "event_type": {_text(request.event_type)}'
        f', "event_version": {request.event_version}'
        f', "occurred_at": {_text(request.occurred_at)}'
        f', "correlation_id": {_text_or_null(request.correlation_id)}'
        f', "causation_id": {_text_or_null(request.causation_id)}'
        ', "payload": '
    )
    return head.encode(), request.payload, b"}"


def _text_or_null(text: str | None) -> str:
    return "null" if text is None else _text(text)


def retry_after_seconds(value: str, *, date: str, max_seconds: float) -> float:
    """Read a Retry-After header, seconds or an HTTP-date, as seconds from now; 0 if it is unusable.

    A date is compared with the answer's own ``Date``, so that only the handler's clock is asked.
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text) if _SECONDS.fullmatch(text) else math.inf, max_seconds)
    until = _http_date(text)
    if until is None:
        return 0.0
    now = _http_date(date) or datetime.now(UTC)
    return min(max((until - now).total_seconds(), 0.0), max_seconds)


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def problem_text(headers: list[tuple[bytes, bytes]], body: bytes) -> str:
    """Return type and title of a response's problem details (RFC 9457), or what FastAPI's validation found.

    Empty if it has none. Each is on one line and cut. Other members, such as ``detail`` and ``instance`` of
    the former and ``msg``, ``input`` and ``ctx`` of the latter, may repeat the payload: they are never read.
    """
    named = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    read = _READERS.get(named.partition(b";")[0].strip().lower())
    if read is None:
        return ""
    try:
        return read(json.loads(body))
    except (ValueError, RecursionError):
        return ""


def members_text(members: object) -> str:
    """Return type and title of problem details that are read already; empty if they are none."""
    if not isinstance(members, dict):
        return ""
    return ", ".join(filter(None, (_line(members.get(name)) for name in ("type", "title"))))


def _validation_text(members: object) -> str:
    """Return places and types of FastAPI's validation errors, such as ``body.payload.order: missing``."""
    match members:
        case {"detail": [*errors]}:
            return ", ".join(filter(None, map(_error_line, errors[:_ERRORS_MAX])))
    return ""


def _error_line(error: object) -> str:
    match error:
        case {"loc": [*loc], "type": str(kind)}:
            place = ".".join(str(part) for part in loc if isinstance(part, str | int))
            return _line(f"{place}: {kind}")
    return ""


_READERS = {b"application/problem+json": members_text, b"application/json": _validation_text}


def _line(member: object) -> str:
    text = " ".join(member.split()) if isinstance(member, str) else ""
    return "".join(filter(str.isprintable, text))[:_PROBLEM_CHARS_MAX]


class MessageStatus(NamedTuple):
    """Status of one message, the seconds that the handler asks to wait (0: none), and its problem details."""

    status: int
    retry_after: float
    problem: str


class BatchAnswerError(Exception):
    """The answer does not give each message exactly one status; the text repeats nothing of the answer."""


def read_statuses(body: bytes, message_ids: Collection[str]) -> Mapping[str, MessageStatus]:
    """Return the status of every message by its ID; the order of the array does not matter.

    An example for two messages, of which the second must wait::

        [{"message_id": "01a1ff20-26d5-749f-b632-89ed53936650", "status": 200},
         {"message_id": "01a1ff20-26d5-749f-b632-89ed53936651", "status": 503, "retry_after": 30,
          "problem": {"title": "The stock is locked"}}]

    Raises:
        BatchAnswerError: the answer is not JSON, no array, or incomplete, or names another message.
    """
    try:
        elements = json.loads(body)
    except (ValueError, RecursionError):
        raise BatchAnswerError("is not JSON") from None
    if not isinstance(elements, list) or len(elements) != len(message_ids):
        raise BatchAnswerError("is no array with one element for each message")
    statuses = dict(map(_element, elements))
    if statuses.keys() != set(message_ids):
        raise BatchAnswerError("does not name each message once")
    return statuses


def _element(element: object) -> tuple[str, MessageStatus]:
    match element:
        case {"message_id": str(message_id), "status": int(status), **others} if status in _STATUSES:
            seconds, problem = _seconds(others.get("retry_after")), members_text(others.get("problem"))
            return message_id.lower(), MessageStatus(status, seconds, problem)
    raise BatchAnswerError("has an element without message_id and status")


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(min(value, _SECONDS_MAX))
    return 0.0
