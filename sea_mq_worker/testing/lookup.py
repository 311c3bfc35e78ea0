"""In-memory fakes of what a message lookup reads: outbox and inbox, streams and consumers."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sea_mq_worker.domain.dead_letters import Reason, conflict_detail
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.domain.headers import MSG_ID
from sea_mq_worker.domain.inbound import recorded_as, storage_id
from sea_mq_worker.domain.outcomes import Stored
from sea_mq_worker.domain.read_models import (
    Discarded,
    EarlierEvent,
    InboxRecord,
    InboxState,
    Match,
    OutboxSummary,
)
from sea_mq_worker.domain.stored_messages import ConsumerDelivery, ConsumerState, PublishedRow, StoredMessage
from sea_mq_worker.domain.stream_search import SearchedId, SearchProgress, SearchResult
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.inbox import InboxRow, InboxTable
from sea_mq_worker.testing.outbox import OutboxRow, OutboxTable, matches
from sea_mq_worker.testing.stream import InMemoryStream

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
