"""When a repeat is looked up in the stream instead of trusted to its duplicate window, and how far."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sea_mq_worker.domain.errors import BrokerUnavailableError, InvalidEventError
from sea_mq_worker.domain.events import ClaimedEvent
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.outcomes import Stored
from sea_mq_worker.domain.stream_search import SearchedId, SearchProgress, SearchResult
from sea_mq_worker.domain.subjects import event_subject
from sea_mq_worker.ports.jetstream import JetStreamPublisher
from sea_mq_worker.ports.observer import Observer

SEARCH_SLACK_SECONDS = 60.0
"""How much further back than the first attempt a search goes."""

_SAFETY_FACTOR = 0.8
_REMEMBERED_MAX = 10_000
_REPORT_EVERY = 5


def may_be_outside_window(seconds_ago: float, *, window_seconds: float, sending_seconds: float = 0.0) -> bool:
    """Tell whether the stream may not know an id any more by the time it is published again.

    Args:
        seconds_ago: since the first attempt; 0 where this is the first.
        window_seconds: the stream's duplicate window.
        sending_seconds: longest time until the repeat reaches the stream.
    """
    return seconds_ago > 0 and seconds_ago + sending_seconds > window_seconds * _SAFETY_FACTOR


class SearchOutcome(NamedTuple):
    """What a search brought; a doubtful event that is in neither is not in the stream."""

    found: Mapping[str, Stored]
    unfinished: frozenset[str]
    why: str
    progressed: bool
    """Another search goes on further on."""


class _Search(NamedTuple):
    attempts: int
    """The event's, at the claim that searched."""
    tries: int
    """Searches that did not reach the end."""
    looked: SearchProgress | None


class StreamSearches:
    """How far the stream was searched for doubtful events, kept from one claim of an event to the next.

    A busy stream cannot be searched within one claim. No message is read twice, so that every search comes
    to its end; an event that is forgotten here is searched for from its first attempt on.
    """

    def __init__(self, *, context: str, observer: Observer) -> None:
        self._context = context
        self._observer = observer
        self._known: dict[str, _Search] = {}

    async def look_up(self, publisher: JetStreamPublisher, events: Sequence[ClaimedEvent]) -> SearchOutcome:
        """Search for events, each from where its last search stopped."""
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

    def _wanted(self, event: ClaimedEvent) -> SearchedId:
        known = self._known.get(event.id)
        looked = known.looked if known else None
        if looked and known and (looked.is_over or event.attempts != known.attempts + 1):
            looked = looked._replace(until=0)  # it may have been sent since, by this worker or another
        return SearchedId(
            id=event.id,
            since_seconds=event.attempted_seconds_ago + SEARCH_SLACK_SECONDS,
            subject=self._subject(event),
            other_than=event.earlier_stream_seq,
            looked=looked,
        )

    def _ended(self, event: ClaimedEvent, result: SearchResult | None) -> bool:
        """Remember how far a search came that has found nothing; return whether it is over."""
        known = self._known.pop(event.id, _Search(0, 0, None))
        looked = result if isinstance(result, SearchProgress) else known.looked
        over = isinstance(result, SearchProgress) and result.is_over
        self._known[event.id] = _Search(event.attempts, 0 if over else known.tries + 1, looked)
        if len(self._known) > _REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        return over

    def _report_unfinished(self, unfinished: Sequence[ClaimedEvent], why: str) -> None:
        long = [event for event in unfinished if self._known[event.id].tries % _REPORT_EVERY == 0]
        if not long:
            return
        text = (
            f"{self._known[long[0].id].tries} searches have not told whether the stream has a copy of event "
            f"{long[0].id} ({why}); until then it and {len(long) - 1} others are not sent. If what is left "
            "does not shrink, raise SEA_MQ_OUTBOX_LEASE_SECONDS, which gives each search more time"
        )
        self._observer.observe(Noticed(event="search_unfinished", text=text))

    def _subject(self, event: ClaimedEvent) -> str:
        try:
            return event_subject(self._context, event.event_type, event.event_version)
        except InvalidEventError:
            return ""
