"""Encodes the handler's request body, and reads its Retry-After (SDS-047, handler contract)."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from json.encoder import encode_basestring_ascii as _text

from sea_mq_worker.domain.messages import HandlerRequest

_SECONDS = re.compile(r"[0-9]{1,9}")


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
