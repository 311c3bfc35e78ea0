"""What is sent to the handler and how its Retry-After reads (SDS-047, handler contract)."""

import json
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sea_mq_worker.domain.messages import HandlerRequest

_SECONDS = re.compile(r"[0-9]{1,9}")


def request_body(request: HandlerRequest) -> bytes:
    """Write SDS-047's JSON in its order; the payload's bytes go in untouched, so no digit is lost."""
    head = json.dumps(
        {
            "message_id": request.message_id,
            "subject": request.subject,
            "event_type": request.event_type,
            "event_version": request.event_version,
            "occurred_at": request.occurred_at,
            "correlation_id": request.correlation_id,
            "causation_id": request.causation_id,
        }
    )
    return b"".join((head[:-1].encode(), b', "payload": ', request.payload, b"}"))


def retry_after_seconds(value: str, *, date: str, max_seconds: float) -> float:
    """Read a Retry-After header, seconds or an HTTP-date, as seconds from now; 0 where it says nothing.

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
