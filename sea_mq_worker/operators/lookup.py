"""Lookup of one id: search outbox, streams, inbox and dead letters, and say in words where the message is.

``Lookup`` searches, and notes what it could not search. ``describe`` makes sentences, the history and the
next commands from what was found.
"""

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
from sea_mq_worker.operators.dead_letters import DeadLetterFilter, DeadLetters, can_be_handled
from sea_mq_worker.operators.records import (
    DeliveryState,
    InboxRecord,
    InboxState,
    OutboxFilter,
    OutboxSummary,
    StoredMessage,
)
from sea_mq_worker.operators.streams import deliveries, locate, open_broker
from sea_mq_worker.operators.tables import SQL, open_tables, outbox_page, show_inbox
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.outbox.maintenance import PublishedRow, PublishedRows, find_loss
from sea_mq_worker.outbox.retry import can_be_sent
from sea_mq_worker.outbox.scan import find_messages
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
    """A search for one id.

    Attributes:
        connection: to the streams; None: only the tables are searched.
        searched: streams whose headers are searched if a start time is given.
        dead_hold: whether a DEAD event holds back the later events of its ordering key.
        notes: places that could not be searched, with the reason.
    """

    pool: asyncpg.Pool
    connection: NatsConnection | None
    letters: DeadLetters | None = None
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
        event = next(iter((await outbox_page(self.pool, OutboxFilter(ids=(wanted,)))).rows), None)
        message = await show_inbox(self.pool, wanted)
        seconds = _SEARCH_SECONDS_MAX if since else _UNASKED_SECONDS_MAX
        if not (since or event or message):
            since = _time_of(wanted)
        places: dict[tuple[str, int], str] = {}
        if event and event.stream and event.stream_seq:
            places[event.stream, event.stream_seq] = ""
        if message and message.stream and message.stream_seq:
            places.setdefault((message.stream, message.stream_seq), message.consumer or "")
        # All streams at once: one without a leader does not answer, and the time-outs must not add up.
        located, letters = await asyncio.gather(
            asyncio.gather(*(self._locate(wanted, *place, consumer) for place, consumer in places.items())),
            self._letters(wanted, event, message),
        )
        if since is not None and not any(located):
            located = [await self._search(wanted, stream, since, seconds) for stream in self.searched]
        stored = tuple(one for one in located if one)
        owner = (event.claimed_by if event else None) or (message.locked_by if message else None)
        records: Sequence[asyncpg.Record] | None = None
        if not (event or message):  # not every login may read the audit
            records = await self.attempt("the audit", fetch(self.pool, SQL["discarded"].sql, str(wanted)))
        return Found(
            id=str(wanted),
            event=event,
            earlier=await self._earlier(event) if event else (),
            message=message,
            stored=stored,
            dead_letters=tuple(letters),
            conflicts=await self._conflicts(wanted) if message else (),
            discarded=Discarded(**records[0]) if records else None,
            holder_lives=await self._lives(owner or ""),
            lost=await self._lost(event, stored) if event else "",
            searched_since=since,
            not_checked=tuple(sorted(set(self.notes))),
        )

    async def attempt(self, what: str, asked: Awaitable[_T]) -> _T | None:
        """Await an answer about a place; note it if there is none."""
        try:
            return await asked
        except WorkerError as error:
            self.notes.append(f"{what}: {error}")
            return None

    async def _earlier(self, event: OutboxSummary) -> tuple[EarlierEvent, ...]:
        """Return the events that it waits for: unfinished ones of its key, and DEAD ones that hold it."""
        if event.ordering_key is None:
            return ()
        args = event.ordering_key, event.seq, _EARLIER_MAX, self.dead_hold
        return tuple(EarlierEvent(**row) for row in await fetch(self.pool, SQL["earlier_of_key"].sql, *args))

    async def _lives(self, owner: str) -> bool | None:
        token = owner.rpartition("#")[2]
        if len(token) <= _SESSION_DIGITS or not _PREFIX.fullmatch(token[:_SESSION_DIGITS]):
            return None
        [row] = await fetch(self.pool, SQL["session_is_held"].sql, token[:_SESSION_DIGITS])
        return bool(row["exists"])

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
        found = await self.attempt(f"stream {stream}", locate(self.connection, stream, seq, str(wanted)))
        if found is None:
            return None
        asked = deliveries(self.connection, found, consumer=consumer)
        return replace(found, consumers=tuple(await self.attempt(f"consumers of {stream}", asked) or ()))

    async def _search(
        self, wanted: UUID, stream: str, since: datetime, within_seconds: float
    ) -> StoredMessage | None:
        """Search the headers of all messages that a stream stored since then."""
        if self.connection is None:
            return None
        searched = SearchedId(str(wanted), (datetime.now(UTC) - since + _MARGIN).total_seconds())
        asked = find_messages(self.connection, stream, [searched], timeout_seconds=within_seconds)
        found = (await self.attempt(f"stream {stream}", asked) or {}).get(searched.id)
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
        return await self.attempt(f"stream {self.letters.stream}", reading) or []

    async def _read_letters(
        self, letters: DeadLetters, wanted: str, which: DeadLetterFilter
    ) -> list[FoundDeadLetter]:
        read = 0
        found: list[FoundDeadLetter] = []
        async for one in letters.walk(which, limit=_LETTERS_READ_MAX):
            read += 1
            if one.message_id == wanted:
                found.append(
                    FoundDeadLetter(
                        seq=one.seq,
                        stored_at=one.stored_at,
                        reason=one.reason,
                        detail=one.detail,
                        consumer=one.consumer,
                        can_be_handled=can_be_handled(one),
                    )
                )
        if read == _LETTERS_READ_MAX and not found:
            self.notes.append(f"stream {letters.stream}: only its first {read} dead letters of that time")
        return found

    async def _lost(self, event: OutboxSummary, stored: Sequence[StoredMessage]) -> str:
        """Return the evidence that the stream lost the event, instead of dropping it by its limits."""
        stream, seq = event.stream or "", event.stream_seq or 0
        if self.connection is None or event.published_at is None or not seq:
            return ""
        if any((one.stream, one.seq) == (stream, seq) for one in stored):
            return ""
        row = PublishedRow(str(event.id), seq, event.published_at)
        asked = find_loss(self.connection, stream, PublishedRows(greatest=seq, some=[row]))
        return await self.attempt(f"stream {stream}", asked) or ""


def _time_of(wanted: UUID) -> datetime | None:
    """Return the time within a UUIDv7; None: it is of another version, or later than now."""
    if wanted.version != _TIMED_VERSION:
        return None
    at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=wanted.int >> 80)
    return at if at < datetime.now(UTC) + _MARGIN else None


@asynccontextmanager
async def open_lookup(settings: Settings) -> AsyncIterator[Lookup]:
    """Connect to the database and, if it can be reached, to the broker.

    Raises:
        WorkerError: the tables cannot be read; without a broker only they are searched.
    """
    streams = [settings.stream, *(each.stream for each in settings.consumers)]
    async with open_tables(settings) as pool, AsyncExitStack() as stack:
        lookup = Lookup(
            pool=pool,
            connection=None,
            searched=dict.fromkeys(streams),
            dead_hold=settings.outbox_dead_key == "hold",
        )
        if not settings.nats_url.get_secret_value():
            lookup.notes.append("streams: SEA_MQ_NATS_URL is not set")
        else:
            opened = stack.enter_async_context(open_broker(settings))
            lookup.connection = await lookup.attempt("streams", opened)
        if lookup.connection:
            lookup.letters = DeadLetters(lookup.connection, settings.dlq_stream)
        yield lookup


async def lookup_report(text: str, lookup: Lookup, *, since: datetime | None = None) -> LookupReport:
    """Report where the event or message with an id, the beginning of an id or a correlation id is.

    ``since``: also search the headers of stream messages back to this time, if no table has the message.

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


# --- The report. Each part returns sentences of the answer, and the commands to run next.

_Said: TypeAlias = tuple[list[str], list[str]]

_PROGRAM = "python -m sea_mq_worker"
_WHY = '--reason "..."'
_READINGS = {
    DeliveryState.TO_COME: "has still to deliver it, after {} others at most",
    DeliveryState.DELIVERED: "has delivered it, and waits for it or an earlier one to end",
    DeliveryState.DONE: "is done with it",
    DeliveryState.NOT_FOR_IT: "leaves it out by its filter",
}


def describe(found: Found, *, now: datetime) -> LookupReport:
    parts = [_event(found.event, found, now)] if found.event else []
    parts += [_message(found.message, found)] if found.message else []
    parts = parts or [_unknown(found)]
    answer = [text for said, _ in parts for text in said]
    following = [command for _, commands in parts for command in commands]
    for message in found.stored:
        for each in message.consumers:
            reading = _READINGS[each.reading].format(each.before)
            answer.append(f"consumer {each.consumer} of {message.stream} {reading}")
    for conflict in found.conflicts:
        letter = conflict.dead_letter
        place = f"as dead letter {letter.seq}" if letter else "and its dead letter was not found"
        answer.append(
            f"another content came under this id: it is dead-lettered {place}, under the id {conflict.id}"
        )
        following += [f"{_PROGRAM} dlq show {letter.seq}"] if letter else []
    return LookupReport(
        id=found.id,
        answer=tuple(answer),
        steps=tuple(sorted(_steps(found), key=lambda step: step.at)),
        next_steps=tuple(following),
        not_checked=found.not_checked,
        found=found,
    )


def _event(event: OutboxSummary, found: Found, now: datetime) -> _Said:
    last = f"; the last attempt: {event.last_error}" if event.last_error else ""
    match EventState(event.state):
        case EventState.PENDING if found.earlier:
            first, count = found.earlier[0], len(found.earlier)
            more = " or more" * (count == _EARLIER_MAX)
            said = f"it waits for {count}{more} earlier event{'s' * (count > 1)} of its ordering key"
            error = first.last_error or "no error"
            return [f"{said}, the first {first.state}: {error}"], [f"{_PROGRAM} where {first.id}"]
        case EventState.PENDING:
            is_due = event.available_at <= now
            waits = "waits for a worker since" if is_due else "is tried again at" if last else "is due at"
            return [f"it {waits} {_at(event.available_at)}{last}"], [f"{_PROGRAM} doctor"] * is_due
        case EventState.CLAIMED:
            return [_holder("publishing", event.claimed_by, event.attempts, found)], []
        case EventState.DEAD:
            dead = f"it is DEAD and will not be published: {event.last_error or 'no error is noted'}"
            if can_be_sent(event.last_error):
                return [dead], [f"{_PROGRAM} outbox replay {event.id} {_WHY}"]
            never = "it can never be sent as it is: publish it corrected, under a new id"
            return [dead, never], [f"{_PROGRAM} outbox discard {event.id} {_WHY}"]
        case EventState.PUBLISHED:
            return _published(event, found)


def _holder(doing: str, owner: str | None, attempts: int, found: Found) -> str:
    said = f"the worker {(owner or '').partition('#')[0]} is {doing} it, attempt {attempts}"
    if found.holder_lives is None:
        return said
    if found.holder_lives:
        return f"{said}; its session lives"
    return f"{said}; its session is gone: a worker takes the lease over, or the lease ends by its time"


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


def _message(message: InboxRecord, found: Found) -> _Said:
    match InboxState(message.state):
        case InboxState.PROCESSED:
            return ["the handler has had its effect"], []
        case InboxState.HANDLING:
            return [_holder("handling", message.locked_by, message.attempts, found)], []
        case InboxState.WAITING:
            return _waiting(message, found)
        case InboxState.DEAD_LETTERED if message.dead_letter_reason == "CLOSED":
            return [f"an operator gave it up: {message.last_error}"], []
        case InboxState.DEAD_LETTERED:
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
        return [
            f"{gone.actor} discarded it at {_at(gone.at)}: {gone.reason}",
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


def _steps(found: Found) -> Iterator[Step]:
    if event := found.event:
        what = f"{event.event_type} of {event.aggregate_type} {event.aggregate_id}"
        yield Step(at=event.created_at, text=f"written to the outbox: {what}")
        if event.claimed_at:
            yield Step(at=event.claimed_at, text=f"claimed by {event.claimed_by}")
        if event.published_at:
            by = f"acknowledged by {event.stream} ({event.stream_seq})"
            yield Step(at=event.published_at, text=by if event.stream else "published by another worker")
    for stored in found.stored:
        text = f"stored in {stored.stream} ({stored.seq}) as {stored.subject}"
        yield Step(at=stored.stored_at, text=text)
    if message := found.message:
        by = f" by {message.consumer}" if message.consumer else ""
        yield Step(at=message.received_at, text=f"received{by}: {message.subject}")
        if message.processed_at:
            yield Step(at=message.processed_at, text="processed")
        if message.dead_lettered_at:
            text = f"noted as dead-lettered: {message.dead_letter_reason}"
            yield Step(at=message.dead_lettered_at, text=text)
    for letter in found.dead_letters:
        yield Step(at=letter.stored_at, text=f"stored as dead letter {letter.seq}: {letter.reason}")


def _at(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
