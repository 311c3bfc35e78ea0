"""Which span tells of a message: how a number in a histogram leads to a trace."""

from typing import Protocol

_SPANS_MAX = 10_000
"""More messages are not in hand at a time; what is never asked for is forgotten."""


class SpanName(Protocol):
    """What names a span: its trace's number and its own."""

    @property
    def trace_id(self) -> int: ...

    @property
    def span_id(self) -> int: ...


class RecentSpans:
    """Sampled spans of messages that are not counted yet; empty where tracing is off."""

    def __init__(self) -> None:
        self._spans: dict[str, SpanName] = {}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def note(self, message_id: str, span: SpanName) -> None:
        """Remember the span of a message, and no more than there may be in hand."""
        if len(self._spans) >= _SPANS_MAX:
            del self._spans[next(iter(self._spans))]
        self._spans[message_id] = span

    def take(self, message_id: str) -> SpanName | None:
        """Return a message's span and forget it."""
        return self._spans.pop(message_id, None)
