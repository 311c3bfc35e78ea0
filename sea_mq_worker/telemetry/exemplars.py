"""Recent spans by message, which become exemplars of histograms."""

from typing import Protocol

_SPANS_MAX = 10_000
"""Cap on stored spans, above the number of in-flight messages; the oldest is dropped."""


class SpanName(Protocol):
    """Identity of a span: the ids of its trace and of itself."""

    @property
    def trace_id(self) -> int: ...

    @property
    def span_id(self) -> int: ...


class RecentSpans:
    """Sampled spans of messages that metrics have not counted yet; empty if tracing is off."""

    def __init__(self) -> None:
        self._spans: dict[str, SpanName] = {}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def note(self, message_id: str, span: SpanName) -> None:
        """Store the span of a message; drop the oldest above the cap."""
        if len(self._spans) >= _SPANS_MAX:
            del self._spans[next(iter(self._spans))]
        self._spans[message_id] = span

    def take(self, message_id: str) -> SpanName | None:
        return self._spans.pop(message_id, None)
