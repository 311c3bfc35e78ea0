"""The subject grammar (SDS-047 EventSubject): ``{context}.event.{name}.v{n}``."""

import re
from dataclasses import dataclass
from functools import lru_cache

from sea_mq_worker.errors import InvalidEventError, InvalidMessageError

SUBJECT_BYTES_MAX = 1024
"""Limit far below the server's control line of 4 KiB; the server closes the connection beyond it."""

_CONTEXT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_VERSION = re.compile(r"v([1-9][0-9]{0,9})")
_REST = ">"
_UNREADABLE = "\ufffd"
"""Placeholder of invalid UTF-8 in a received subject; therefore refused as a character of a subject."""


@dataclass(frozen=True, slots=True)
class EventSubject:
    """A valid subject and its parts; ``event_type`` may have dots of its own."""

    value: str
    context: str
    event_type: str
    event_version: int


def is_context(text: str) -> bool:
    return _CONTEXT.fullmatch(text) is not None


def stream_prefix(context: str) -> str:
    """Return how the names of a context's streams begin."""
    return context.upper().replace("-", "_")


def events_stream(context: str) -> str:
    return f"{stream_prefix(context)}_EVENTS"


def durable_consumer(context: str, upstream: str) -> tuple[str, str]:
    """Return stream and durable with which ``context`` consumes the events of ``upstream``."""
    return events_stream(upstream), f"{context}__from_{upstream}"


@lru_cache(maxsize=1024)
def event_subject(context: str, event_type: str, event_version: int) -> str:
    """Build the subject of an event; raise InvalidEventError for type and version that give none."""
    problem = _token_problem(event_type)
    if problem:
        raise InvalidEventError(f"INVALID_OUTBOX: event_type {problem}")
    if event_version < 1:
        raise InvalidEventError(f"INVALID_OUTBOX: event_version {event_version} is below 1")
    subject = f"{context}.event.{event_type}.v{event_version}"
    if len(subject.encode()) > SUBJECT_BYTES_MAX:
        raise InvalidEventError(f"INVALID_OUTBOX: the subject is longer than {SUBJECT_BYTES_MAX} bytes")
    return subject


@lru_cache(maxsize=256)  # the messages of a stream have few different subjects
def parse_subject(subject: str) -> EventSubject:
    """Parse a subject; raise InvalidMessageError (BAD_SUBJECT) where it does not follow the grammar."""
    if _UNREADABLE in subject:
        raise InvalidMessageError("BAD_SUBJECT", "the subject is not UTF-8, or holds U+FFFD")
    tokens = subject.split(".")
    version = _VERSION.fullmatch(tokens[-1])
    name = ".".join(tokens[2:-1])
    if len(tokens) < 4 or tokens[1] != "event" or version is None or _token_problem(name):  # noqa: PLR2004
        raise InvalidMessageError("BAD_SUBJECT", "expected {context}.event.{event_type}.v{event_version}")
    return EventSubject(subject, tokens[0], name, int(version[1]))


def event_type_of(subject: str) -> str:
    """Return the event type of a subject; empty if the subject does not follow the grammar."""
    try:
        return parse_subject(subject).event_type
    except InvalidMessageError:
        return ""


def _token_problem(name: str) -> str:
    if not name:
        return "is blank"
    if "*" in name or ">" in name:
        return "contains a wildcard"
    if not name.isprintable() or any(map(str.isspace, name)):
        return "contains a space or control character"
    if _UNREADABLE in name:
        return "contains U+FFFD, which a receiver cannot tell from bytes that are no UTF-8"
    if name.startswith(".") or name.endswith(".") or ".." in name:
        return "has an empty token"
    return ""


def covers(pattern: str, subject: str) -> bool:
    """Return whether every subject that ``subject``, itself a pattern, matches is matched by ``pattern``.

    ``*`` is one token; a last ``>`` is one or more.
    """
    wide, narrow = pattern.split("."), subject.split(".")
    for place, token in enumerate(wide):
        if token == _REST:
            return len(narrow) > place
        if place >= len(narrow) or narrow[place] == _REST:
            return False
        if token not in {"*", narrow[place]}:
            return False
    return len(wide) == len(narrow)
