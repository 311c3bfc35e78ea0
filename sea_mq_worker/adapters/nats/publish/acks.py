"""What the stream's answer to a publish means for the message."""

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from nats.aio.msg import Msg

from sea_mq_worker.domain.outcomes import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown

NOT_BATCHED = frozenset({10174, 10205})
"""The stream no longer takes atomic batches, or fast ones."""

_NEVER = frozenset({10054, 10097, 10165, 10166, *range(10186, 10194), 10203, 10212, 10223, 10227})
"""The message's own fault: too large, headers too large, per-message TTL, schedules, reserved headers."""
_SEQ_MAX = 2**63 - 1
"""The largest that a row can note; a stream that counts on from 1 never gets there."""
_SEQ_DIGITS = len(str(_SEQ_MAX))
_NOT_NOW = frozenset({10070, 10071, 10164})
"""An expectation about what the stream held last was not met."""


def read_ack(msg: Msg, stream: str) -> PublishOutcome:
    """Read the answer to one publish; an acknowledgement counts only if it is from ``stream``."""
    if msg.headers and not msg.data:
        return Unknown(_status(msg.headers.get("Status", "")), answered=True)
    return judge_ack(parse(msg.data), stream)


def judge_ack(answer: dict[str, Any], stream: str) -> PublishOutcome:
    """Judge a parsed answer. A refusal that tells nothing about the message itself is Unknown."""
    if error := answer.get("error"):
        return judge_error(error)
    named, seq = answer.get("stream"), answer.get("seq")
    if not _is_number(seq) or not 1 <= seq <= _SEQ_MAX:
        return Unknown("the answer was no acknowledgement of a stream", answered=True)
    if named != stream:
        return Unknown(
            f"acknowledged by stream {named!r} instead of {stream!r}: another stream takes the subject; "
            "run `python -m sea_mq_worker streams check`",
            answered=True,
        )
    return Stored(stream, seq, duplicate=answer.get("duplicate") is True)


def judge_error(error: dict[str, Any]) -> PublishOutcome:
    """Judge the error object of an answer."""
    code = error_code(error)
    text = f"{error.get('description', 'refused')} ({error.get('code', 0)}/{code})"
    if code in _NEVER:
        return Rejected(text)
    if code in _NOT_NOW:
        return FailedTransiently(text)
    return Unknown(text, answered=True)


def error_code(error: dict[str, Any]) -> int:
    """Return JetStream's own number of an error, or 0."""
    code = error.get("err_code")
    return code if _is_number(code) else 0


def parse(data: bytes) -> dict[str, Any]:
    """Parse an answer; what is no JSON object becomes an empty one, and so does an error that is none."""
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
    """Return a count of an answer; what is none is 0."""
    value = answer.get(name)
    return max(0, value) if _is_number(value) else 0


def _is_number(value: object) -> TypeGuard[int]:
    """Tell a whole number from all else; ``true`` is an int to Python."""
    return type(value) is int


def _status(status: str) -> str:
    if status == "503":
        return "no stream takes the subject, or it has no leader now"
    return f"the server answered with status {status or 'unknown'}"


class AckReader:
    """Reads acknowledgements of one stream; the usual form without parsing JSON."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._usual = f'{{"stream":{json.dumps(stream)},"seq":'.encode()

    def __call__(self, msg: Msg) -> PublishOutcome:
        data = msg.data
        usual = self._usual
        if data.startswith(usual) and data.endswith(b"}"):
            digits = data[len(usual) : -1].strip()
            if digits.isdigit() and digits != b"0" and len(digits) < _SEQ_DIGITS:
                return Stored(self.stream, int(digits))
        return read_ack(msg, self.stream)
