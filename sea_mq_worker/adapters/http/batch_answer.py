"""Reads the answer of the handler's batch endpoint: an array with the ID and the status of every message.

An example for two messages, of which the second must wait::

    [{"message_id": "01a1ff20-26d5-749f-b632-89ed53936650", "status": 200},
     {"message_id": "01a1ff20-26d5-749f-b632-89ed53936651", "status": 503, "retry_after": 30,
      "problem": {"title": "The stock is locked"}}]
"""

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sea_mq_worker.adapters.http.problem_details import members_text

_STATUSES = range(100, 600)
_SECONDS_MAX = 31_536_000


class MessageStatus(NamedTuple):
    """Status of one message, the seconds that the handler asks to wait (0: none), and its problem details."""

    status: int
    retry_after: float
    problem: str


class BatchAnswerError(Exception):
    """The answer does not give each message exactly one status; the text repeats nothing of the answer."""


def read_statuses(body: bytes, message_ids: Collection[str]) -> Mapping[str, MessageStatus]:
    """Return the status of every message by its ID; the order of the array does not matter.

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
