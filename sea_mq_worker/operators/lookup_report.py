"""Report of a message lookup in plain words: state, history and next commands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

from sea_mq_worker.operators.lookup import EARLIER_MAX, Conflicting, Found, FoundDeadLetter, MessageLookup
from sea_mq_worker.operators.records import (
    DeliveryState,
    EarlierEvent,
    InboxRecord,
    InboxState,
    Match,
    OutboxSummary,
    StoredMessage,
)
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.outbox.retry import can_be_sent

_Said: TypeAlias = tuple[list[str], list[str]]
"""Sentences of the answer, and the commands to run next."""

_PROGRAM = "python -m sea_mq_worker"
_WHY = '--reason "..."'
_BY_ANOTHER = "published by another worker"


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


async def lookup_report(text: str, lookup: MessageLookup, *, since: datetime | None = None) -> LookupReport:
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
    wanted = ids.pop() if ids else _whole(text)
    if wanted is None:
        return LookupReport(id=text, answer=(f"no event and no message begins with {text}",))
    return describe(await lookup.find(wanted, since=since), now=datetime.now(UTC))


def _whole(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


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
        more = " or more" * (len(earlier) == EARLIER_MAX)
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
            by = f"acknowledged by {event.stream} ({event.stream_seq})" if event.stream else _BY_ANOTHER
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
