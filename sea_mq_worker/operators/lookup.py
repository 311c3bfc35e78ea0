"""Message lookup: find one id in outbox, streams, inbox and dead letters."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.nats.message import SearchedId, Stored
from sea_mq_worker.operators.database import operations
from sea_mq_worker.operators.dead_letters import can_be_handled
from sea_mq_worker.operators.ports import DeadLetterStore, LookupTables, StreamInspection
from sea_mq_worker.operators.records import (
    DeadLetterEntry,
    DeadLetterFilter,
    Discarded,
    EarlierEvent,
    InboxRecord,
    Match,
    OutboxFilter,
    OutboxSummary,
    PublishedRow,
    StoredMessage,
)
from sea_mq_worker.operators.streams import lookup_broker
from sea_mq_worker.settings import Settings

_PREFIX = re.compile(r"[0-9a-f]{4,32}")
_HEX_DIGITS = 32
_SESSION_DIGITS = 8
"""An owner is the worker's name, #, the digits of its session if it has one, and as many of the lease."""
_MATCHES_MAX = 20
EARLIER_MAX = 100
_CONFLICTS_MAX = 5
_LETTERS_READ_MAX = 10_000
_SEARCH_SECONDS_MAX = 600.0
_UNASKED_SECONDS_MAX = 5.0
"""Limit of a search that nobody requested; the page's requests end after 8 s."""
_TIMED_VERSION = 7
_MARGIN = timedelta(minutes=5)
"""Margin for the difference between the broker's and the database's clock."""
_FIRST, _LAST = (one.replace(tzinfo=UTC) for one in (datetime.min, datetime.max))  # noqa: DTZ901

_T = TypeVar("_T")


class NoIdError(WorkerError):
    """The given text can be no id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDeadLetter:
    """A dead letter of the message, without its content; ``can_be_handled``: a redrive calls the handler."""

    seq: int
    stored_at: datetime
    reason: str
    detail: str
    consumer: str
    can_be_handled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicting:
    """A message with another content under the same id: its own id, and its dead letter if it was found."""

    id: str
    dead_letter: FoundDeadLetter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All results for one id.

    Attributes:
        event: the row in the outbox.
        earlier: earlier events of its ordering key, at most 100.
        message: the row in the inbox.
        stored: messages in the streams, the event's first.
        dead_letters: dead letters in the dead-letter stream.
        conflicts: messages with another content under this id, which were dead-lettered.
        discarded: the audit's record of an event that an operator discarded.
        holder_lives: whether the worker that has a lease of the row holds its session; None: no worker has
            one, or it has no session, and the lease ends by its time alone.
        lost: evidence that the stream acknowledged the event and lost it; empty: there is none.
        searched_since: time from which the streams' headers were searched; None: they were not.
        not_checked: places that could not be searched, with the reason.
    """

    id: str
    event: OutboxSummary | None
    earlier: tuple[EarlierEvent, ...]
    message: InboxRecord | None
    stored: tuple[StoredMessage, ...]
    dead_letters: tuple[FoundDeadLetter, ...]
    conflicts: tuple[Conflicting, ...]
    not_checked: tuple[str, ...]
    discarded: Discarded | None = None
    holder_lives: bool | None = None
    lost: str = ""
    searched_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLookup:
    """Sources to search. Without a broker only the tables are searched; ``absent`` gives the reason.

    Attributes:
        searched: streams whose headers are searched if a start time is given.
        dead_hold: whether a DEAD event holds back the later events of its ordering key.
    """

    tables: LookupTables
    broker: tuple[StreamInspection, DeadLetterStore] | None
    dlq_stream: str
    searched: tuple[str, ...]
    dead_hold: bool = False
    absent: str = ""

    async def matches(self, text: str) -> Sequence[Match]:
        """Return matches of an id, of its beginning (4 hexadecimal digits or more) or of a correlation id.

        Raises:
            NoIdError: the text is none of these.
        """
        digits = text.strip().lower().removeprefix("urn:uuid:").replace("-", "")
        if not _PREFIX.fullmatch(digits):
            raise NoIdError(f"{text!r} is no id: give a UUID, or 4 or more of its first digits")
        first, last = UUID(digits.ljust(_HEX_DIGITS, "0")), UUID(digits.ljust(_HEX_DIGITS, "f"))
        found = await self.tables.ids_between(first, last, limit=_MATCHES_MAX)
        if found or first != last:
            return found
        events = await self.tables.list_outbox(OutboxFilter(correlation_id=first, limit=_MATCHES_MAX))
        return [
            Match(side="outbox", id=one.id, state=one.state, name=one.event_type, at=one.created_at)
            for one in events
        ]

    async def find(self, wanted: UUID, *, since: datetime | None = None) -> Found:
        """Search for one id; with ``since`` also in the headers of stream messages stored after that time.

        The time within a UUIDv7 that no table has stands in for ``since``.

        Raises:
            WorkerError: the tables cannot be read. ``not_checked`` lists other places that cannot be read.
        """
        event = next(iter(await self.tables.list_outbox(OutboxFilter(ids=(wanted,), limit=1))), None)
        message = await self.tables.show_inbox(wanted)
        not_checked: list[str] = []
        seconds = _SEARCH_SECONDS_MAX if since else _UNASKED_SECONDS_MAX
        if not (since or event or message):
            since = _time_of(wanted)
        stored, letters = await self._at_broker(str(wanted), event, message, (since, seconds), not_checked)
        lost = await self._lost(event, stored, not_checked)
        earlier: Sequence[EarlierEvent] = ()
        if event:
            earlier = await self.tables.earlier_of_key(event, limit=EARLIER_MAX, dead_hold=self.dead_hold)
        discarded = None if event or message else await self._discarded(wanted, not_checked)
        return Found(
            id=str(wanted),
            event=event,
            earlier=tuple(earlier),
            message=message,
            stored=stored,
            dead_letters=letters,
            conflicts=await self._conflicts(wanted, not_checked) if message else (),
            discarded=discarded,
            holder_lives=await self._holder_lives(event, message),
            not_checked=tuple(sorted(set(not_checked))),
            lost=lost,
            searched_since=since,
        )

    async def _holder_lives(self, event: OutboxSummary | None, message: InboxRecord | None) -> bool | None:
        owner = (event and event.claimed_by) or (message and message.locked_by) or ""
        token = owner.rpartition("#")[2]
        session = token[:_SESSION_DIGITS] if len(token) > _SESSION_DIGITS else ""
        return await self.tables.session_is_held(session) if _PREFIX.fullmatch(session) else None

    async def _discarded(self, wanted: UUID, not_checked: list[str]) -> Discarded | None:
        """Query the audit; not every login may read it."""
        try:
            return await self.tables.discarded(wanted)
        except ContractError as error:
            not_checked.append(f"the audit: {error}")
            return None

    async def _lost(
        self, event: OutboxSummary | None, stored: Sequence[StoredMessage], not_checked: list[str]
    ) -> str:
        """Return the evidence that the stream lost the event, instead of dropping it by its limits."""
        if self.broker is None or event is None or event.published_at is None:
            return ""
        stream, seq = event.stream or "", event.stream_seq or 0
        if not seq or any((one.stream, one.seq) == (stream, seq) for one in stored):
            return ""
        try:
            row = PublishedRow(str(event.id), seq, event.published_at)
            return await self.broker[0].evidence_of_loss(stream, row)
        except WorkerError as error:
            not_checked.append(f"stream {stream}: {error}")
            return ""

    async def _conflicts(self, wanted: UUID, not_checked: list[str]) -> tuple[Conflicting, ...]:
        found = []
        for own_id in await self.tables.conflicts(wanted, limit=_CONFLICTS_MAX):
            row = await self.tables.show_inbox(own_id)
            letters: Sequence[FoundDeadLetter] = ()
            if row and self.broker:
                broker = _Broker(*self.broker, self.dlq_stream, not_checked)
                letters = await broker.letters(str(own_id), None, row)
            found.append(Conflicting(id=str(own_id), dead_letter=letters[-1] if letters else None))
        return tuple(found)

    async def _at_broker(
        self,
        wanted: str,
        event: OutboxSummary | None,
        message: InboxRecord | None,
        search: tuple[datetime | None, float],
        not_checked: list[str],
    ) -> tuple[tuple[StoredMessage, ...], tuple[FoundDeadLetter, ...]]:
        """Query the streams; a stream that cannot be read is added to ``not_checked``.

        Query all streams concurrently: a stream without a leader does not answer, and the time-outs must not
        add up.
        """
        if self.broker is None:
            not_checked.append(self.absent)
            return (), ()
        broker = _Broker(*self.broker, self.dlq_stream, not_checked)
        stored, letters = await asyncio.gather(
            asyncio.gather(*(broker.locate(wanted, place) for place in _places(event, message))),
            broker.letters(wanted, event, message),
        )
        since, seconds = search
        if since is not None and not any(stored):
            stored = [await broker.search(wanted, stream, since, seconds) for stream in self.searched]
        return tuple(one for one in stored if one), tuple(letters)


@asynccontextmanager
async def message_lookup(settings: Settings) -> AsyncIterator[MessageLookup]:
    """Connect to the database and, if it can be reached, to the broker.

    Raises:
        WorkerError: the tables cannot be read; without a broker only they are searched.
    """
    async with AsyncExitStack() as stack:
        tables = await stack.enter_async_context(operations(settings))
        broker, absent = None, "streams: SEA_MQ_NATS_URL is not set"
        if settings.nats_url.get_secret_value():
            try:
                broker = await stack.enter_async_context(lookup_broker(settings))
            except WorkerError as error:
                absent = f"streams: {error}"
        yield MessageLookup(
            tables=tables,
            broker=broker,
            dlq_stream=settings.dlq_stream,
            searched=tuple(dict.fromkeys([settings.stream, *(each.stream for each in settings.consumers)])),
            dead_hold=settings.outbox_dead_key == "hold",
            absent=absent,
        )


@dataclass(frozen=True, slots=True)
class _Place:
    stream: str
    seq: int
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class _Broker:
    """Queries the broker, and records failed queries in ``not_checked``."""

    streams: StreamInspection
    dead_letters: DeadLetterStore
    dlq_stream: str
    not_checked: list[str]

    async def locate(self, wanted: str, place: _Place) -> StoredMessage | None:
        found = await self._try(
            f"stream {place.stream}", self.streams.locate(place.stream, place.seq, wanted)
        )
        if found is None:
            return None
        asked = self.streams.deliveries(found, consumer=place.consumer)
        return replace(found, consumers=tuple(await self._try(f"consumers of {place.stream}", asked) or ()))

    async def search(
        self, wanted: str, stream: str, since: datetime, within_seconds: float
    ) -> StoredMessage | None:
        """Search the headers of all messages that a stream stored since then."""
        age = (datetime.now(UTC) - since + _MARGIN).total_seconds()
        asked = self.streams.search(stream, SearchedId(wanted, age), timeout_seconds=within_seconds)
        found = await self._try(f"stream {stream}", asked)
        if isinstance(found, Stored):
            return await self.locate(wanted, _Place(stream, found.seq))
        if found and not found.is_over:
            self.not_checked.append(
                f"stream {stream}: only searched up to {found.through}; give a later --since"
            )
        return None

    async def letters(
        self, wanted: str, event: OutboxSummary | None, message: InboxRecord | None
    ) -> list[FoundDeadLetter]:
        """Search the dead letters, around the time of dead-lettering if the inbox recorded it."""
        if message and not message.dead_letter_begun_at:
            return []
        if event and not message:
            return []
        which = DeadLetterFilter()
        if message and message.dead_letter_begun_at:
            which = replace(which, since=max(message.dead_letter_begun_at, _FIRST + _MARGIN) - _MARGIN)
        if message and message.dead_lettered_at:
            which = replace(which, until=min(message.dead_lettered_at, _LAST - _MARGIN) + _MARGIN)
        return await self._try(f"stream {self.dlq_stream}", self._read_letters(wanted, which)) or []

    async def _read_letters(self, wanted: str, which: DeadLetterFilter) -> list[FoundDeadLetter]:
        read = 0
        found: list[FoundDeadLetter] = []
        async for one in self.dead_letters.walk(which, limit=_LETTERS_READ_MAX):
            read += 1
            if one.message_id == wanted:
                found.append(_letter(one))
        if read == _LETTERS_READ_MAX and not found:
            self.not_checked.append(
                f"stream {self.dlq_stream}: only its first {read} dead letters of that time"
            )
        return found

    async def _try(self, what: str, asked: Awaitable[_T]) -> _T | None:
        try:
            return await asked
        except WorkerError as error:
            self.not_checked.append(f"{what}: {error}")
            return None


def _time_of(wanted: UUID) -> datetime | None:
    """Return the time within a UUIDv7; None: it is of another version, or later than now."""
    if wanted.version != _TIMED_VERSION:
        return None
    at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=wanted.int >> 80)
    return at if at < datetime.now(UTC) + _MARGIN else None


def _letter(one: DeadLetterEntry) -> FoundDeadLetter:
    return FoundDeadLetter(
        seq=one.seq,
        stored_at=one.stored_at,
        reason=one.reason,
        detail=one.detail,
        consumer=one.consumer,
        can_be_handled=can_be_handled(one),
    )


def _places(event: OutboxSummary | None, message: InboxRecord | None) -> list[_Place]:
    """Return the stream positions of the message according to its rows."""
    places = []
    if event and event.stream and event.stream_seq:
        places.append(_Place(event.stream, event.stream_seq))
    if message and message.stream and message.stream_seq:
        place = _Place(message.stream, message.stream_seq, message.consumer or "")
        if (place.stream, place.seq) not in {(known.stream, known.seq) for known in places}:
            places.append(place)
    return places
