"""Message lookup: find one id in outbox, streams, inbox and dead letters, and say in words where it is."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.inbox.dead_letter import Reason, conflict_detail
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.message import SearchedId, Stored
from sea_mq_worker.nats.search import find_messages
from sea_mq_worker.operators.dead_letters import DeadLetters, can_be_handled
from sea_mq_worker.operators.records import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeliveryState,
    InboxRecord,
    InboxState,
    OutboxFilter,
    OutboxSummary,
    PublishedRow,
    StoredMessage,
)
from sea_mq_worker.operators.streams import deliveries, locate, lost_since, open_broker
from sea_mq_worker.operators.tables import SQL, open_tables, outbox_page, show_inbox
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.outbox.retry import can_be_sent
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.settings import Settings

_PREFIX = re.compile(r"[0-9a-f]{4,32}")
_HEX_DIGITS = 32
_SESSION_DIGITS = 8
"""An owner is the worker's name, #, the digits of its session if it has one, and as many of the lease."""
_MATCHES_MAX = 20
_EARLIER_MAX = 100
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


# --- Result of a lookup; ``--json`` prints these records.


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An event or message that matches an id: its side, its type or subject, and its time."""

    side: str
    id: UUID
    state: str
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEvent:
    """An event for which another event of its ordering key waits."""

    id: UUID
    state: str
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The audit's record of an event that an operator discarded."""

    at: datetime
    actor: str
    reason: str
    event_type: str
    error: str | None


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
class Step:
    """A step in the history of an event or message."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupReport:
    """Result of a lookup in plain words.

    Attributes:
        answer: sentences; the first gives the state and place.
        steps: the history, earliest first.
        next_steps: commands to run next.
        not_checked: places that could not be searched, with the reason.
        matches: events and messages that match the id, if there are several.
        found: the data of the report; None if ``matches`` has several.
    """

    id: str
    answer: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    next_steps: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    matches: tuple[Match, ...] = ()
    found: Found | None = None

    @property
    def known(self) -> bool:
        f = self.found
        return bool(
            self.matches or (f and (f.event or f.message or f.stored or f.dead_letters or f.discarded))
        )


# --- The search.


@dataclass(slots=True, kw_only=True)
class Lookup:
    """A search for one id. Without ``connection`` only the tables are searched.

    Attributes:
        pool: to the tables.
        letters: the dead-letter stream, called ``dlq_stream``.
        searched: streams whose headers are searched if a start time is given.
        dead_hold: whether a DEAD event holds back the later events of its ordering key.
        notes: places that could not be searched, with the reason.
    """

    pool: asyncpg.Pool
    connection: NatsConnection | None
    letters: DeadLetters | None = None
    dlq_stream: str = ""
    searched: Collection[str] = ()
    dead_hold: bool = False
    notes: list[str] = field(default_factory=list)

    async def matches(self, text: str) -> Sequence[Match]:
        """Return matches of an id, of its beginning (4 hexadecimal digits or more) or of a correlation id.

        Raises:
            NoIdError: the text is none of these.
        """
        digits = text.strip().lower().removeprefix("urn:uuid:").replace("-", "")
        if not _PREFIX.fullmatch(digits):
            raise NoIdError(f"{text!r} is no id: give a UUID, or 4 or more of its first digits")
        first, last = UUID(digits.ljust(_HEX_DIGITS, "0")), UUID(digits.ljust(_HEX_DIGITS, "f"))
        rows = await fetch(self.pool, SQL["ids_between"].sql, first, last, _MATCHES_MAX)
        if rows or first != last:
            return [Match(**row) for row in rows]
        which = OutboxFilter(correlation_id=first, limit=_MATCHES_MAX)
        return [
            Match(side="outbox", id=one.id, state=one.state, name=one.event_type, at=one.created_at)
            for one in (await outbox_page(self.pool, which)).rows
        ]

    async def find(self, wanted: UUID, *, since: datetime | None = None) -> Found:
        """Search for one id; with ``since`` also in the headers of stream messages stored after that time.

        The time within a UUIDv7 that no table has stands in for ``since``.

        Raises:
            WorkerError: the tables cannot be read. ``notes`` lists other places that cannot be read.
        """
        event = next(iter((await outbox_page(self.pool, OutboxFilter(ids=(wanted,), limit=1))).rows), None)
        message = await show_inbox(self.pool, wanted)
        seconds = _SEARCH_SECONDS_MAX if since else _UNASKED_SECONDS_MAX
        if not (since or event or message):
            since = _time_of(wanted)
        # All streams at once: one without a leader does not answer, and the time-outs must not add up.
        stored, letters = await asyncio.gather(
            asyncio.gather(*(self._locate(wanted, *place) for place in _places(event, message))),
            self._letters(wanted, event, message),
        )
        if since is not None and not any(stored):
            stored = [await self._search(wanted, stream, since, seconds) for stream in self.searched]
        found = tuple(one for one in stored if one)
        return Found(
            id=str(wanted),
            event=event,
            earlier=await self._earlier(event) if event else (),
            message=message,
            stored=found,
            dead_letters=tuple(letters),
            conflicts=await self._conflicts(wanted) if message else (),
            discarded=None if event or message else await self._discarded(wanted),
            holder_lives=await self._holder_lives(event, message),
            lost=await self._lost(event, found) if event else "",
            searched_since=since,
            not_checked=tuple(sorted(set(self.notes))),
        )

    async def _earlier(self, event: OutboxSummary) -> tuple[EarlierEvent, ...]:
        """Return the events that it waits for: unfinished ones of its key, and DEAD ones that hold it."""
        if event.ordering_key is None:
            return ()
        args = event.ordering_key, event.seq, _EARLIER_MAX, self.dead_hold
        return tuple(EarlierEvent(**row) for row in await fetch(self.pool, SQL["earlier_of_key"].sql, *args))

    async def _holder_lives(self, event: OutboxSummary | None, message: InboxRecord | None) -> bool | None:
        owner = (event and event.claimed_by) or (message and message.locked_by) or ""
        token = owner.rpartition("#")[2]
        session = token[:_SESSION_DIGITS] if len(token) > _SESSION_DIGITS else ""
        if not _PREFIX.fullmatch(session):
            return None
        [row] = await fetch(self.pool, SQL["session_is_held"].sql, session)
        return bool(row["exists"])

    async def _discarded(self, wanted: UUID) -> Discarded | None:
        """Query the audit; not every login may read it."""
        rows = await self._try("the audit", fetch(self.pool, SQL["discarded"].sql, str(wanted)))
        return Discarded(**rows[0]) if rows else None

    async def _conflicts(self, wanted: UUID) -> tuple[Conflicting, ...]:
        reason, found = Reason.CONTENT_CONFLICT, []
        args = str(reason), f"{reason}: {conflict_detail(str(wanted))}", _CONFLICTS_MAX
        for row in await fetch(self.pool, SQL["conflicts"].sql, *args):
            other = await show_inbox(self.pool, row["message_id"])
            letters = await self._letters(row["message_id"], None, other) if other else []
            found.append(Conflicting(id=str(row["message_id"]), dead_letter=letters[-1] if letters else None))
        return tuple(found)

    async def _locate(self, wanted: UUID, stream: str, seq: int, consumer: str = "") -> StoredMessage | None:
        if self.connection is None:
            return None
        found = await self._try(f"stream {stream}", locate(self.connection, stream, seq, str(wanted)))
        if found is None:
            return None
        asked = deliveries(self.connection, found, consumer=consumer)
        return replace(found, consumers=tuple(await self._try(f"consumers of {stream}", asked) or ()))

    async def _search(
        self, wanted: UUID, stream: str, since: datetime, within_seconds: float
    ) -> StoredMessage | None:
        """Search the headers of all messages that a stream stored since then."""
        if self.connection is None:
            return None
        searched = SearchedId(str(wanted), (datetime.now(UTC) - since + _MARGIN).total_seconds())
        asked = find_messages(self.connection, stream, [searched], timeout_seconds=within_seconds)
        found = (await self._try(f"stream {stream}", asked) or {}).get(searched.id)
        if isinstance(found, Stored):
            return await self._locate(wanted, stream, found.seq)
        if found and not found.is_over:
            self.notes.append(f"stream {stream}: only searched up to {found.through}; give a later --since")
        return None

    async def _letters(
        self, wanted: UUID, event: OutboxSummary | None, message: InboxRecord | None
    ) -> list[FoundDeadLetter]:
        """Search the dead letters, around the time of dead-lettering if the inbox recorded it."""
        if self.letters is None or (message and not message.dead_letter_begun_at) or (event and not message):
            return []
        which = DeadLetterFilter()
        if message and message.dead_letter_begun_at:
            which = replace(which, since=max(message.dead_letter_begun_at, _FIRST + _MARGIN) - _MARGIN)
        if message and message.dead_lettered_at:
            which = replace(which, until=min(message.dead_lettered_at, _LAST - _MARGIN) + _MARGIN)
        reading = self._read_letters(self.letters, str(wanted), which)
        return await self._try(f"stream {self.dlq_stream}", reading) or []

    async def _read_letters(
        self, letters: DeadLetters, wanted: str, which: DeadLetterFilter
    ) -> list[FoundDeadLetter]:
        read = 0
        found: list[FoundDeadLetter] = []
        async for one in letters.walk(which, limit=_LETTERS_READ_MAX):
            read += 1
            if one.message_id == wanted:
                found.append(_found(one))
        if read == _LETTERS_READ_MAX and not found:
            self.notes.append(f"stream {self.dlq_stream}: only its first {read} dead letters of that time")
        return found

    async def _lost(self, event: OutboxSummary, stored: Sequence[StoredMessage]) -> str:
        """Return the evidence that the stream lost the event, instead of dropping it by its limits."""
        stream, seq = event.stream or "", event.stream_seq or 0
        if self.connection is None or event.published_at is None or not seq:
            return ""
        if any((one.stream, one.seq) == (stream, seq) for one in stored):
            return ""
        row = PublishedRow(str(event.id), seq, event.published_at)
        asked = lost_since(self.connection, stream, greatest=seq, shared=0, some=[row])
        return await self._try(f"stream {stream}", asked) or ""

    async def _try(self, what: str, asked: Awaitable[_T]) -> _T | None:
        try:
            return await asked
        except WorkerError as error:
            self.notes.append(f"{what}: {error}")
            return None


@asynccontextmanager
async def open_lookup(settings: Settings) -> AsyncIterator[Lookup]:
    """Connect to the database and, if it can be reached, to the broker.

    Raises:
        WorkerError: the tables cannot be read; without a broker only they are searched.
    """
    async with open_tables(settings) as pool:
        lookup = Lookup(
            pool=pool,
            connection=None,
            dlq_stream=settings.dlq_stream,
            searched=dict.fromkeys([settings.stream, *(each.stream for each in settings.consumers)]),
            dead_hold=settings.outbox_dead_key == "hold",
        )
        if not settings.nats_url.get_secret_value():
            lookup.notes.append("streams: SEA_MQ_NATS_URL is not set")
            yield lookup
            return
        async with AsyncExitStack() as stack:
            try:
                lookup.connection = await stack.enter_async_context(open_broker(settings))
                lookup.letters = DeadLetters(lookup.connection, settings.dlq_stream)
            except WorkerError as error:
                lookup.notes.append(f"streams: {error}")
            yield lookup


async def lookup_report(text: str, lookup: Lookup, *, since: datetime | None = None) -> LookupReport:
    """Report where an event or message is.

    Args:
        text: its id, the beginning of its id, or a correlation id.
        lookup: searches tables and streams.
        since: also search the headers of stream messages back to this time, if no table has the message.

    Raises:
        NoIdError: ``text`` can be no id.
        WorkerError: the tables cannot be read.
    """
    matches = await lookup.matches(text)
    ids = {match.id for match in matches}
    if len(ids) > 1:
        said = f"{text} may mean any of these and perhaps others; name one"
        return LookupReport(id=text, answer=(said,), matches=tuple(matches))
    try:
        wanted = ids.pop() if ids else UUID(text.strip())
    except ValueError:
        return LookupReport(id=text, answer=(f"no event and no message begins with {text}",))
    return describe(await lookup.find(wanted, since=since), now=datetime.now(UTC))


def _time_of(wanted: UUID) -> datetime | None:
    """Return the time within a UUIDv7; None: it is of another version, or later than now."""
    if wanted.version != _TIMED_VERSION:
        return None
    at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=wanted.int >> 80)
    return at if at < datetime.now(UTC) + _MARGIN else None


def _found(one: DeadLetterEntry) -> FoundDeadLetter:
    return FoundDeadLetter(
        seq=one.seq,
        stored_at=one.stored_at,
        reason=one.reason,
        detail=one.detail,
        consumer=one.consumer,
        can_be_handled=can_be_handled(one),
    )


def _places(event: OutboxSummary | None, message: InboxRecord | None) -> list[tuple[str, int, str]]:
    """Return where the rows say that the message is: stream, sequence, and its consumer if one is known."""
    places = []
    if event and event.stream and event.stream_seq:
        places.append((event.stream, event.stream_seq, ""))
    if message and message.stream and message.stream_seq:
        place = message.stream, message.stream_seq
        places += [] if (*place, "") in places else [(*place, message.consumer or "")]
    return places


# --- The report.

_Said: TypeAlias = tuple[list[str], list[str]]
"""Sentences of the answer, and the commands to run next."""

_PROGRAM = "python -m sea_mq_worker"
_WHY = '--reason "..."'


def describe(found: Found, *, now: datetime) -> LookupReport:
    answer: list[str] = []
    following: list[str] = []
    parts = []
    if found.event:
        parts.append(_event(found.event, found, now))
    if found.message:
        parts.append(_message(found.message, found))
    for part in parts or [_unknown(found)]:
        answer += part[0]
        following += part[1]
    answer += [text for message in found.stored for text in _consumers(message)]
    for conflict in found.conflicts:
        answer.append(_conflict(conflict))
        following += [f"{_PROGRAM} dlq show {conflict.dead_letter.seq}"] if conflict.dead_letter else []
    return LookupReport(
        id=found.id,
        answer=tuple(answer),
        steps=tuple(sorted(_steps(found), key=lambda step: step.at)),
        next_steps=tuple(following),
        not_checked=found.not_checked,
        found=found,
    )


def _event(event: OutboxSummary, found: Found, now: datetime) -> _Said:
    match EventState(event.state):
        case EventState.PENDING:
            return _pending(event, found.earlier, now)
        case EventState.CLAIMED:
            worker = (event.claimed_by or "").partition("#")[0]
            return [f"the worker {worker} is publishing it, attempt {event.attempts}{_holder(found)}"], []
        case EventState.DEAD:
            return _dead(event)
        case EventState.PUBLISHED:
            return _published(event, found)


def _holder(found: Found) -> str:
    """Return what is known of the worker that has the lease."""
    if found.holder_lives is None:
        return ""
    if found.holder_lives:
        return "; its session lives"
    return "; its session is gone: a worker takes the lease over, or the lease ends by its time"


def _published(event: OutboxSummary, found: Found) -> _Said:
    if not event.stream:
        return ["it is published, by another worker, which noted no place in the stream"], []
    place = f"{event.stream} under sequence {event.stream_seq}"
    if any((one.stream, one.seq) == (event.stream, event.stream_seq) for one in found.stored):
        return [f"it is published, and in {place}"], []
    again = f"{_PROGRAM} outbox replay {event.id} {_WHY}"
    if found.lost:
        said = f"it was published, and the stream has lost it since: {found.lost}"
        return [said], [again, f"{_PROGRAM} doctor"]
    if found.not_checked:
        return [f"it is published: {place} was acknowledged"], []
    return [f"it was published, and is no longer in {place}"], [again]


def _dead(event: OutboxSummary) -> _Said:
    said = f"it is DEAD and will not be published: {event.last_error or 'no error is noted'}"
    if can_be_sent(event.last_error):
        return [said], [f"{_PROGRAM} outbox replay {event.id} {_WHY}"]
    return [said, "it can never be sent as it is: publish it corrected, under a new id"], [
        f"{_PROGRAM} outbox discard {event.id} {_WHY}"
    ]


def _pending(event: OutboxSummary, earlier: Sequence[EarlierEvent], now: datetime) -> _Said:
    if earlier:
        first = earlier[0]
        more = " or more" * (len(earlier) == _EARLIER_MAX)
        count = f"{len(earlier)}{more} earlier event{'s' * (len(earlier) > 1)} of its ordering key"
        return [f"it waits for {count}, the first {first.state}: {first.last_error or 'no error'}"], [
            f"{_PROGRAM} where {first.id}"
        ]
    if event.available_at <= now:
        said = f"; the last attempt: {event.last_error}" if event.last_error else ""
        return [f"it waits for a worker since {_at(event.available_at)}{said}"], [f"{_PROGRAM} doctor"]
    if event.last_error:
        return [f"it is tried again at {_at(event.available_at)}; the last attempt: {event.last_error}"], []
    return [f"it is due at {_at(event.available_at)}"], []


def _message(message: InboxRecord, found: Found) -> _Said:
    match InboxState(message.state):
        case InboxState.PROCESSED:
            return ["the handler has had its effect"], []
        case InboxState.HANDLING:
            worker = (message.locked_by or "").partition("#")[0]
            return [f"the worker {worker} is handling it, attempt {message.attempts}{_holder(found)}"], []
        case InboxState.DEAD_LETTERED:
            return _dead_lettered(message, found)
        case InboxState.WAITING:
            return _waiting(message, found)


def _dead_lettered(message: InboxRecord, found: Found) -> _Said:
    if message.dead_letter_reason == "CLOSED":
        return [f"an operator gave it up: {message.last_error}"], []
    said = f"it is dead-lettered: {message.last_error or message.dead_letter_reason}"
    if found.dead_letters:
        return _letter(found.dead_letters[-1], said)
    return [said if found.not_checked else f"{said}; its dead letter is no longer in the stream"], []


def _letter(letter: FoundDeadLetter, said: str) -> _Said:
    show = f"{_PROGRAM} dlq show {letter.seq}"
    if letter.can_be_handled:
        return [said], [show, f"{_PROGRAM} dlq redrive {letter.seq} {_WHY}"]
    never = "it can never be handled as it is: publish it corrected, under a new id"
    return [said, never], [show, f"{_PROGRAM} dlq purge {letter.seq} {_WHY}"]


def _conflict(conflict: Conflicting) -> str:
    letter = conflict.dead_letter
    place = f"as dead letter {letter.seq}" if letter else "and its dead letter was not found"
    return f"another content came under this id: it is dead-lettered {place}, under the id {conflict.id}"


def _waiting(message: InboxRecord, found: Found) -> _Said:
    place = f"{message.stream} under sequence {message.stream_seq}"
    said = f"{message.attempts} attempts had no effect, the last: {message.last_error or 'no answer'}"
    if not message.attempts:
        said = f"no attempt counts: {message.last_error or 'none was made'}"
    held = [one for one in found.stored if (one.stream, one.seq) == (message.stream, message.stream_seq)]
    if not held and not found.not_checked:
        return [f"it is lost: {said}; it is no longer in {place}"], [
            f"send it again under its id, or {_PROGRAM} inbox close {message.message_id} {_WHY}"
        ]
    if any(consumer.reading is DeliveryState.DONE for one in held for consumer in one.consumers):
        return [f"it waits to be read back from {place}, for its consumer will not deliver it; {said}"], []
    return [f"it waits to be delivered again from {place}; {said}"], []


def _unknown(found: Found) -> _Said:
    if gone := found.discarded:
        text = f"{gone.actor} discarded it at {_at(gone.at)}: {gone.reason}"
        return [
            text,
            f"it was a DEAD event of type {gone.event_type}: {gone.error or 'no error is noted'}",
        ], []
    if found.dead_letters:
        letter = found.dead_letters[-1]
        return _letter(letter, f"it is dead-lettered: {letter.reason}: {letter.detail}")
    if found.stored:
        stored = found.stored[0]
        return [f"it is in {stored.stream} under sequence {stored.seq}; neither table has a row of it"], []
    text = "it is not here: neither in the outbox nor received, or its row is pruned"
    if found.searched_since and not found.not_checked:
        return [f"{text}; nor did the streams store it since {_at(found.searched_since)}"], []
    return [text], [f"{_PROGRAM} where {found.id} --since 24h"]


_READINGS = {
    DeliveryState.TO_COME: "has still to deliver it, after {before} others at most",
    DeliveryState.DELIVERED: "has delivered it, and waits for it or an earlier one to end",
    DeliveryState.DONE: "is done with it",
    DeliveryState.NOT_FOR_IT: "leaves it out by its filter",
}


def _consumers(message: StoredMessage) -> Iterator[str]:
    for each in message.consumers:
        reading = _READINGS[each.reading].format(before=each.before)
        yield f"consumer {each.consumer} of {message.stream} {reading}"


def _steps(found: Found) -> Iterator[Step]:
    if event := found.event:
        what = f"{event.event_type} of {event.aggregate_type} {event.aggregate_id}"
        yield Step(at=event.created_at, text=f"written to the outbox: {what}")
        if event.claimed_at:
            yield Step(at=event.claimed_at, text=f"claimed by {event.claimed_by}")
        if event.published_at:
            by = (
                f"acknowledged by {event.stream} ({event.stream_seq})"
                if event.stream
                else "published by another worker"
            )
            yield Step(at=event.published_at, text=by)
    for stored in found.stored:
        text = f"stored in {stored.stream} ({stored.seq}) as {stored.subject}"
        yield Step(at=stored.stored_at, text=text)
    if message := found.message:
        by = f" by {message.consumer}" if message.consumer else ""
        yield Step(at=message.received_at, text=f"received{by}: {message.subject}")
        if message.processed_at:
            yield Step(at=message.processed_at, text="processed")
        if message.dead_lettered_at:
            yield Step(
                at=message.dead_lettered_at, text=f"noted as dead-lettered: {message.dead_letter_reason}"
            )
    for letter in found.dead_letters:
        yield Step(at=letter.stored_at, text=f"stored as dead letter {letter.seq}: {letter.reason}")


def _at(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
