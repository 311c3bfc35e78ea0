"""Stream searches for repeats that may be outside the stream's deduplication window.

The window is ``duplicate_window`` in the stream's definition in ``streams/``.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sea_mq_worker.errors import BrokerUnavailableError, InvalidEventError
from sea_mq_worker.nats.message import (
    OutboundMessage,
    SearchedId,
    SearchProgress,
    SearchResult,
    Stored,
    search_seconds,
)
from sea_mq_worker.outbox.event import OutboxEvent
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.ports import Events, JetStreamPublisher

_REMEMBERED_MAX = 10_000
_REPORT_EVERY = 5


def unfit_window(stream: str, window_seconds: float, *, publish_seconds: float) -> str:
    """Return why a window is too short for the repetitions within one claim; empty: it is not."""
    if window_seconds > publish_seconds:
        return ""
    return (
        f"SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS: must be below the duplicate_window of stream {stream} "
        f"({window_seconds:g} s)"
    )


def short_window(stream: str, window_seconds: float, *, publish_seconds: float, lease_seconds: float) -> str:
    """Return the warning of a window that a repeat after a crash may miss; empty: it covers that, too."""
    if window_seconds >= lease_seconds + publish_seconds:
        return ""
    return (
        f"the duplicate_window of stream {stream}, {window_seconds:g} s, is shorter than lease and publish "
        "time-out together: after a crash the worker searches the stream before it sends an event again; "
        "give all workers the same SEA_MQ_OUTBOX_LEASE_SECONDS"
    )


class SearchOutcome(NamedTuple):
    """Result of a search; an event that is in neither collection is not in the stream."""

    found: Mapping[str, Stored]
    unfinished: frozenset[str]
    why: str
    progressed: bool
    """The search read some messages, and the next one continues behind them."""


class _Search(NamedTuple):
    attempts: int
    """Attempts of the event at the claim that searched."""
    tries: int
    """Number of searches that did not reach the end."""
    looked: SearchProgress | None


class StreamSearches:
    """Progress of the searches for possibly published events, kept from one claim of an event to the next.

    A busy stream cannot be searched within one claim. No message is read twice, so every search ends; the
    search for an event that is forgotten here starts again at its first attempt.
    """

    def __init__(self, *, context: str, events: Events) -> None:
        self._context = context
        self._events = events
        self._known: dict[str, _Search] = {}

    async def look_up(self, publisher: JetStreamPublisher, events: Sequence[OutboxEvent]) -> SearchOutcome:
        """Search for events, each from the end of its last search."""
        results: Mapping[str, SearchResult] = {}
        why = ""
        try:
            results = await publisher.find([self._wanted(event) for event in events])
        except BrokerUnavailableError as error:
            why = str(error)
        found = {name: result for name, result in results.items() if isinstance(result, Stored)}
        unfinished = [e for e in events if e.id not in found and not self._ended(e, results.get(e.id))]
        left = max(
            (result.left for result in results.values() if isinstance(result, SearchProgress)), default=0
        )
        why = why or f"the stream is searched for an earlier copy, with up to {left} messages left to read"
        self._report_unfinished(unfinished, why)
        return SearchOutcome(
            found, frozenset(event.id for event in unfinished), why, progressed=bool(results)
        )

    def _wanted(self, event: OutboxEvent) -> SearchedId:
        known = self._known.get(event.id)
        looked = known.looked if known else None
        if looked and known and (looked.is_over or event.attempts != known.attempts + 1):
            looked = looked._replace(until=0)  # a worker may have sent it since
        message = self._message(event)
        return SearchedId(
            id=event.id,
            since_seconds=search_seconds(event.attempted_seconds_ago),
            subject=message.subject if message else "",
            other_than=event.earlier_stream_seq,
            looked=looked,
            message=message,
        )

    def _ended(self, event: OutboxEvent, result: SearchResult | None) -> bool:
        """Remember the progress of a search without a result; return whether it is over."""
        known = self._known.pop(event.id, _Search(0, 0, None))
        looked = result if isinstance(result, SearchProgress) else known.looked
        over = isinstance(result, SearchProgress) and result.is_over
        self._known[event.id] = _Search(event.attempts, 0 if over else known.tries + 1, looked)
        if len(self._known) > _REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        return over

    def _report_unfinished(self, unfinished: Sequence[OutboxEvent], why: str) -> None:
        long = [event for event in unfinished if self._known[event.id].tries % _REPORT_EVERY == 0]
        if not long:
            return
        text = (
            f"{self._known[long[0].id].tries} searches have not shown whether the stream has a copy of event "
            f"{long[0].id} ({why}); until then it and {len(long) - 1} others are not sent. If the number "
            "left does not shrink, raise SEA_MQ_OUTBOX_LEASE_SECONDS, which gives each search more time"
        )
        self._events.emit("search_unfinished", text=text)

    def _message(self, event: OutboxEvent) -> OutboundMessage | None:
        """Return the event's message, for comparisons; None if there is none that can be published."""
        try:
            return outbound_message(event, context=self._context, source="-") if event.payload else None
        except InvalidEventError:
            return None
