"""In-memory fake of the outbox as replays use it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.inbox.dead_letter import Reason, conflict_detail
from sea_mq_worker.inbox.message import recorded_as, storage_id
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import InboundMessage, SearchedId, SearchProgress, SearchResult, Stored
from sea_mq_worker.operators.ports import Chosen, Replay
from sea_mq_worker.operators.records import (
    ActionOutcome,
    ConsumerDelivery,
    ConsumerState,
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterSummary,
    Discarded,
    EarlierEvent,
    InboxRecord,
    InboxState,
    Match,
    OperatorAction,
    OutboxFilter,
    OutboxSummary,
    PublishedRow,
    Redrive,
    StoredMessage,
    check_accountable,
    parse_dead_letter,
)
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.inbox import InboxRow, InboxTable
from sea_mq_worker.testing.outbox import OutboxRow, OutboxTable, matches
from sea_mq_worker.testing.stream import InMemoryStream

# --- In-memory fakes of the dead letters as operators use them: their stream, and their records in the
# inbox.

_ALL = DeadLetterFilter()


class InMemoryDeadLetters:
    """A dead-letter stream; see ``ports.operations.DeadLetterStore``.

    Args:
        stream: the dead letters.
        sources: the streams of the original messages.
    """

    def __init__(self, *, stream: InMemoryStream, sources: Sequence[InMemoryStream] = ()) -> None:
        self._stream = stream
        self._sources = {source.name: source for source in sources}

    async def list(
        self, which: DeadLetterFilter = _ALL, *, limit: int = 100, read_max: int | None = None
    ) -> Sequence[DeadLetterSummary]:
        """List dead letters, oldest first."""
        return [entry.summary() async for entry in self.walk(which, limit=limit, read_max=read_max)]

    async def walk(
        self, which: DeadLetterFilter = _ALL, *, limit: int | None = None, read_max: int | None = None
    ) -> AsyncIterator[DeadLetterEntry]:
        """Yield dead letters one by one."""
        found = read = 0
        for stored in self._stream.entries(after_seq=which.after_seq):
            entry = await self.show(stored.seq)
            if which.since and entry.stored_at < which.since:
                continue
            if which.until and entry.stored_at >= which.until:
                return
            read += 1
            if which.matches(entry):
                yield entry
                found += 1
            if found == limit or read == read_max:
                return

    async def show(self, seq: int) -> DeadLetterEntry:
        """Return one dead letter."""
        return parse_dead_letter(_message(self._stream, seq))

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        """Return the original message."""
        if entry.stream not in self._sources:
            raise ContractError(f"there is no stream {entry.stream}")
        found = _message(self._sources[entry.stream], entry.stream_sequence)
        return found._replace(consumer=entry.consumer, deliveries=entry.attempts)

    async def remove(self, seq: int) -> None:
        """Delete one dead letter."""
        self._stream.remove((await self.show(seq)).seq)


class InMemoryDeadLetterRecords:
    """An ``InboxTable`` and the audit; see ``ports.operations.DeadLetterRecords``.

    Attributes:
        actions: the audit, earliest first.
    """

    def __init__(self, *, table: InboxTable) -> None:
        self.actions: list[OperatorAction] = []
        self._table = table

    async def redriven(self, message_id: UUID, *, actor: str, reason: str) -> Redrive:
        """Open a dead-lettered message, and begin a record."""
        action = self._begin("redrive", {"message_id": message_id}, actor, reason)
        row = self._table.rows.get(str(message_id))
        if row is None or not row.settled:
            return Redrive(open=True, reopened=False, action=action)
        if row.processed_at is not None:
            return Redrive(open=False, reopened=False, action=action)
        row.dead_lettered_at = row.dead_letter_reason = None
        row.attempts = 0
        return Redrive(open=True, reopened=True, action=action)

    async def begin_purge(self, selection: Mapping[str, Any], *, actor: str, reason: str) -> int:
        """Begin the record of a purge."""
        return self._begin("purge", selection, actor, reason)

    async def record_purge(self, message_id: UUID | None, *, action: int, actor: str, reason: str) -> bool:
        """Record that a message is given up, unless it is open."""
        row = self._table.rows.get(str(message_id))
        if row is not None and not row.settled:
            return False
        if row is not None and row.dead_lettered_at is not None:
            row.dead_letter_reason = "CLOSED"
            row.last_error = "; ".join(filter(None, (f"purged by {actor}: {reason}", row.last_error)))
        self._change(action, affected=self.actions[action - 1].affected + 1)
        return True

    async def finish(self, action: int, outcome: ActionOutcome) -> None:
        """Record the outcome of a redrive or purge."""
        record = self.actions[action - 1]
        redriven = record.action == "redrive" and outcome == "done"
        self._change(action, outcome=outcome, affected=record.affected + redriven)

    def _begin(self, action: str, selection: Mapping[str, Any], actor: str, reason: str) -> int:
        check_accountable(actor, reason)
        record = OperatorAction(
            id=len(self.actions) + 1,
            at=EPOCH + timedelta(seconds=self._table.clock()),
            actor=actor,
            action=action,
            reason=reason,
            selection=str(selection),
            affected=0,
            outcome="open",
        )
        self.actions.append(record)
        return record.id

    def _change(self, action: int, **changes: Any) -> None:
        self.actions[action - 1] = replace(self.actions[action - 1], **changes)


def _message(stream: InMemoryStream, seq: int) -> InboundMessage:
    message = stream.message(seq)
    if message is None:
        raise ContractError(f"stream {stream.name} has no message {seq} (any more)")
    return message


# --- In-memory fakes of what a message lookup reads: outbox and inbox, streams and consumers.

_UNFINISHED = {EventState.PENDING, EventState.CLAIMED}


class InMemoryLookupTables:
    """Outbox and inbox of one database; see ``ports.operations.LookupTables``.

    Attributes:
        discards: events that operators discarded.
        held: sessions of living workers.
    """

    def __init__(self, *, outbox: OutboxTable, inbox: InboxTable) -> None:
        self.discards: dict[UUID, Discarded] = {}
        self.held: set[str] = set()
        self._outbox = outbox
        self._inbox = inbox

    async def ids_between(self, first: UUID, last: UUID, *, limit: int) -> Sequence[Match]:
        """Return events and messages in the order of their IDs."""
        events = [
            Match(side="outbox", id=one.id, state=one.state, name=one.event_type, at=one.created_at)
            for one in map(_summary, self._outbox.rows.values())
            if first <= one.id <= last
        ]
        messages = [
            Match(side="inbox", id=one.message_id, state=one.state, name=one.subject, at=one.received_at)
            for one in map(self._record, self._inbox.rows.values())
            if first <= one.message_id <= last
        ]
        return [one for side in (events, messages) for one in sorted(side, key=lambda m: m.id)[:limit]]

    async def list_outbox(self, which: OutboxFilter) -> Sequence[OutboxSummary]:
        """List events, the latest first; ``before_id`` does not matter."""
        rows = sorted(self._outbox.rows.values(), key=lambda row: (-row.created_at, -row.seq))
        return [_summary(row) for row in rows if matches(row, which)][: which.limit]

    async def show_inbox(self, message_id: UUID) -> InboxRecord | None:
        """Return one message."""
        row = self._inbox.rows.get(str(message_id))
        return None if row is None else self._record(row)

    async def earlier_of_key(
        self, event: OutboxSummary, *, limit: int, dead_hold: bool
    ) -> Sequence[EarlierEvent]:
        """Return the events that this one waits for, earliest first."""
        holding = _UNFINISHED | ({EventState.DEAD} if dead_hold else set())
        found = [
            EarlierEvent(id=UUID(row.id), state=row.state, last_error=row.error)
            for row in sorted(self._outbox.rows.values(), key=lambda row: row.seq)
            if event.ordering_key is not None
            and row.ordering_key == event.ordering_key
            and row.seq < event.seq
            and row.state in holding
        ]
        return found[:limit]

    async def conflicts(self, message_id: UUID, *, limit: int) -> Sequence[UUID]:
        """Return the IDs of dead-lettered conflicts, the latest first."""
        noted = f"{Reason.CONTENT_CONFLICT}: {conflict_detail(str(message_id))}"
        found = [row for row in self._inbox.rows.values() if row.dead_lettered_at and row.last_error == noted]
        found.sort(key=lambda row: -(row.dead_lettered_at or 0.0))
        return [UUID(row.entry.message_id) for row in found[:limit]]

    async def session_is_held(self, session: str) -> bool:
        """Return whether the session is among the held ones."""
        return session in self.held

    async def discarded(self, event_id: UUID) -> Discarded | None:
        """Return the record of a discarded event."""
        return self.discards.get(event_id)

    def _record(self, row: InboxRow) -> InboxRecord:
        if row.processed_at is not None:
            state = InboxState.PROCESSED
        elif row.dead_lettered_at is not None:
            state = InboxState.DEAD_LETTERED
        else:
            is_leased = row.locked_until is not None and row.locked_until > self._inbox.clock()
            state = InboxState.HANDLING if is_leased else InboxState.WAITING
        return InboxRecord(
            message_id=UUID(row.entry.message_id),
            subject=row.entry.subject,
            consumer=row.entry.consumer,
            stream=row.entry.stream,
            stream_seq=row.entry.stream_seq,
            received_at=EPOCH + timedelta(seconds=row.received_at),
            processed_at=_at(row.processed_at),
            attempts=row.attempts,
            last_error=row.last_error,
            locked_until=_at(row.locked_until),
            locked_by=row.locked_by,
            dead_letter_reason=row.dead_letter_reason,
            dead_letter_begun_at=_at(row.dead_letter_begun_at),
            dead_lettered_at=_at(row.dead_lettered_at),
            state=state,
        )


class InMemoryStreamInspection:
    """Streams with their consumers; see ``ports.operations.StreamInspection``.

    ``limited``: the streams may have dropped a missing message by their limits.
    """

    def __init__(
        self,
        *,
        streams: Sequence[InMemoryStream],
        consumers: Sequence[InMemoryConsumer] = (),
        limited: bool = False,
    ) -> None:
        self._limited = limited
        self._streams = {stream.name: stream for stream in streams}
        self._consumers = sorted(consumers, key=lambda consumer: consumer.name)

    async def locate(self, stream: str, seq: int, message_id: str) -> StoredMessage | None:
        """Return the message at a sequence."""
        message = self._streams[stream].message(seq) if stream in self._streams else None
        if message is None or message_id not in {recorded_as(message), storage_id(message)}:
            return None
        return StoredMessage(stream=stream, seq=seq, subject=message.subject, stored_at=message.stored_at)

    async def deliveries(self, found: StoredMessage, *, consumer: str = "") -> Sequence[ConsumerDelivery]:
        """Return the progress of a consumer, or of all of the stream."""
        return [one.delivery(found.seq) for one in self._consumers_of(found.stream, consumer)]

    async def search(self, stream: str, wanted: SearchedId, *, timeout_seconds: float) -> SearchResult | None:  # noqa: ARG002
        """Look through a stream; it takes no time."""
        source = self._stream(stream)
        seqs = [entry.seq for entry in source.entries() if entry.headers.get(MSG_ID) == wanted.id]
        if seqs:
            return Stored(stream, seqs[-1], duplicate=True)
        return SearchProgress("", source.last_seq, source.last_seq)

    async def evidence_of_loss(self, stream: str, row: PublishedRow) -> str:
        """Compare a row with the stream."""
        source = self._stream(stream)
        if row.seq > source.last_seq:
            return f"a row names sequence {row.seq}, and the stream ends at {source.last_seq}"
        entry = source.get(row.seq)
        if entry is None:
            return "" if self._limited else f"somebody removed message {row.seq}, event {row.id}"
        if entry.headers.get(MSG_ID) == row.id:
            return ""
        return f"the stream has another message at {row.seq}, the sequence of event {row.id}"

    async def first_stored_at(self, stream: str) -> datetime | None:
        """Return the time of the oldest message."""
        entries = self._streams[stream].entries() if stream in self._streams else ()
        return _at(entries[0].stored_at) if entries else None

    async def consumer_state(self, stream: str, durable: str) -> ConsumerState:
        """Return the backlog of a consumer."""
        return self._consumers_of(stream, durable)[0].state()

    def _stream(self, name: str) -> InMemoryStream:
        if name not in self._streams:
            raise ContractError(f"stream {name} does not exist")
        return self._streams[name]

    def _consumers_of(self, stream: str, name: str) -> Sequence[InMemoryConsumer]:
        found = [one for one in self._consumers if one.stream == stream and name in {"", one.name}]
        if name and not found:
            raise ContractError(f"consumer {name} of stream {stream} does not exist")
        return found


def _summary(row: OutboxRow) -> OutboxSummary:
    return OutboxSummary(
        id=UUID(row.id),
        seq=row.seq,
        aggregate_type=row.aggregate_type,
        aggregate_id=row.aggregate_id,
        event_type=row.event_type,
        event_version=row.event_version,
        ordering_key=row.ordering_key,
        correlation_id=UUID(row.correlation_id) if row.correlation_id else None,
        state=row.state,
        attempts=row.attempts,
        failures=row.failures,
        created_at=EPOCH + timedelta(seconds=row.created_at),
        occurred_at=EPOCH + timedelta(seconds=row.created_at),
        available_at=EPOCH + timedelta(seconds=row.available_at),
        claimed_at=_at(row.claimed_at),
        claimed_by=row.claimed_by,
        published_at=_at(row.published_at),
        stream=row.stream or None,
        stream_seq=row.stream_seq or None,
        last_error=row.error,
    )


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


@dataclass(slots=True)
class InMemoryReplays:
    """An ``OutboxTable``; see ``ports.operations.ReplayTables``.

    Attributes:
        replays: the record of each replay, by its ID.
        finished: IDs of the finished ones.
    """

    table: OutboxTable
    hold_dead_keys: bool = False
    replays: dict[int, Replay] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    async def choose(
        self, which: OutboxFilter, *, limit: int | None, resumed: Replay | None = None
    ) -> Sequence[Chosen]:
        """Return the events to put back."""
        rows = sorted(self.table.rows.values(), key=lambda row: row.seq)
        found = [
            Chosen(UUID(row.id), row.seq, _time(row.published_at))
            for row in rows
            if row.state in _TERMINAL and matches(row, which) and (resumed is None or _is_left(row, resumed))
        ]
        return found[:limit]

    async def begin(self, which: OutboxFilter, *, actor: str, reason: str) -> Replay:
        """Begin the record of a replay."""
        check_accountable(actor, reason)
        action = len(self.replays) + 1
        at = EPOCH + timedelta(seconds=self.table.clock())
        self.replays[action] = Replay(id=action, which=which, at=at)
        return self.replays[action]

    async def load(self, action: int) -> Replay:
        """Return an interrupted replay."""
        if action not in self.replays:
            raise WorkerError(f"action {action} is no replay")
        replay = self.replays[action]
        if action in self.finished:
            raise WorkerError(f"replay {action} is finished: it put back {replay.replayed}")
        return replay

    async def put_back(self, replay: Replay, portion: Sequence[Chosen]) -> Replay:
        """Put events back."""
        if self.replays[replay.id].through != replay.through:
            raise WorkerError(f"another run continues replay {replay.id}; let it, or stop it first")
        ids = [str(one.id) for one in portion if self.table.rows[str(one.id)].state in _TERMINAL]
        for event_id in ids:
            self.table.replay(event_id)
        changed = replace(replay, through=portion[-1].seq, replayed=replay.replayed + len(ids))
        self.replays[replay.id] = changed
        return changed

    async def not_taken(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Return the events that are still to be claimed."""
        rows = [self.table.rows[str(event_id)] for event_id in ids]
        return [UUID(row.id) for row in rows if self._is_waiting(row)]

    async def finish(self, replay: Replay) -> None:
        """Close the record."""
        self.finished.add(replay.id)

    def _is_waiting(self, row: OutboxRow) -> bool:
        is_held_back = row.ordering_key is not None and any(
            other.ordering_key == row.ordering_key and other.seq < row.seq and self._holds_back(other)
            for other in self.table.rows.values()
        )
        return row.state is EventState.PENDING and not row.attempts and not is_held_back

    def _holds_back(self, row: OutboxRow) -> bool:
        if row.state is EventState.DEAD:
            return self.hold_dead_keys
        return row.state is not EventState.PUBLISHED and row.error is not None


def _is_left(row: OutboxRow, replay: Replay) -> bool:
    published_at = None if row.published_at is None else EPOCH + timedelta(seconds=row.published_at)
    is_own_work = published_at is not None and replay.at is not None and published_at >= replay.at
    return row.seq > replay.through and not is_own_work
