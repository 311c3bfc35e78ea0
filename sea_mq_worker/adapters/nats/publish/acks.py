"""Judges a stream's reply to a publish; the publishers handle a reply that does not come."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from sea_mq_worker.domain.outcomes import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown

NO_STREAM = "no stream takes the subject, or it has no leader now"
NOT_ATOMIC = frozenset({10174})
"""Errors of a stream that does not allow atomic batches."""

_NEVER = frozenset({10054, 10097, 10165, 10166, *range(10186, 10194), 10203, 10212, 10223, 10227})
"""Errors that the message itself causes: its size, headers too large, TTL, schedules, reserved headers."""
_NO_STORAGE = 10023
_SEQ_MAX = 2**63 - 1
"""Largest sequence that fits into a column of PostgreSQL; a stream that counts from 1 never reaches it."""
_SEQ_DIGITS = len(str(_SEQ_MAX))
_NOT_NOW = frozenset({10070, 10071, 10164})
"""Errors of an expectation about the stream's last message."""


def judge_ack(answer: dict[str, Any], stream: str, domain: str = "") -> PublishOutcome:
    """Judge a parsed reply; a refusal for a reason other than the message itself is Unknown.

    An acknowledgement counts only if ``stream`` sent it; ``domain`` of its JetStream, empty for any.
    """
    if error := answer.get("error"):
        return judge_error(error)
    named, seq = answer.get("stream"), answer.get("seq")
    if not _is_number(seq) or not 1 <= seq <= _SEQ_MAX:
        return Unknown("the reply was no acknowledgement of a stream", answered=True)
    if named != stream:
        return Unknown(
            f"acknowledged by stream {named!r} instead of {stream!r}: another stream takes the subject; "
            "run `python -m sea_mq_worker streams check`",
            answered=True,
            refused=True,
        )
    if domain and answer.get("domain") != domain:
        return Unknown(
            f"acknowledged by the JetStream domain {answer.get('domain', '')!r} instead of {domain!r}: "
            "a stream of the same name is there, too",
            answered=True,
            refused=True,
        )
    return Stored(stream, seq, duplicate=answer.get("duplicate") is True)


def judge_error(error: dict[str, Any]) -> PublishOutcome:
    code = number(error, "err_code")
    text = f"{error.get('description', 'refused')} ({error.get('code', 0)}/{code})"
    if code == _NO_STORAGE:
        text += ": nats-server has used up its max_file_store or max_memory_store"
    if code in _NEVER:
        return Rejected(text)
    if code in _NOT_NOW:
        return FailedTransiently(text)
    return Unknown(text, answered=True, refused=True)


def parse(data: bytes) -> dict[str, Any]:
    """Parse a reply; return an empty object unless it is a JSON object whose error is an object."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(parsed, dict):
        return {}
    if parsed.get("error") and not isinstance(parsed["error"], dict):
        return {}
    return parsed


def number(answer: Mapping[str, Any], name: str) -> int:
    """Return a count or code from a reply; 0 if it is not a number."""
    value = answer.get(name)
    return max(0, value) if _is_number(value) else 0


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int


class AckReader:
    """Reads acknowledgements of one stream, the usual form without a JSON parser."""

    def __init__(self, stream: str, domain: str = "") -> None:
        self.stream = stream
        self._domain = domain
        of_domain = f'"domain":{json.dumps(domain)},' if domain else ""
        start = re.escape(f'{{"stream":{json.dumps(stream)},{of_domain}"seq":'.encode())
        self._usual = re.compile(start + rb"\s*([1-9]\d{0,%d})\s*\}" % (_SEQ_DIGITS - 2)).fullmatch

    def __call__(self, data: bytes, status: str) -> PublishOutcome:
        """Read the reply to one publish; a reply with a status comes from the server, not from the stream."""
        if usual := self._usual(data):
            return Stored(self.stream, int(usual[1]))
        if status:
            reason = NO_STREAM if status == "503" else f"the server answered with status {status}"
            return Unknown(reason, answered=True)
        return judge_ack(parse(data), self.stream, self._domain)
