"""Servers as operators' commands use them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from sea_mq_worker.nats.message import InboundMessage, SearchedId, SearchResult
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
    Match,
    OutboxFilter,
    OutboxSummary,
    PublishedRow,
    Redrive,
    StoredMessage,
)

# --- A replay as operators see it: its record, the chosen events, its progress and its result.


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay that has begun.

    Attributes:
        id: id of its record in ``operator_actions``.
        at: when the replay began; None: just now.
        through: all events up to this seq are done.
        replayed: number of events put back so far.
    """

    id: int
    which: OutboxFilter
    at: datetime | None = None
    through: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """An event to put back; ``published_at`` is None for a DEAD one."""

    id: UUID
    seq: int
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        matched: number of events that could be replayed; cap + 1 means more than the cap.
        replayed: number of events put back; 0 in a dry run, and if more than the cap matched.
        last_published_at: when the last of them was published; None: all were DEAD.
    """

    matched: int
    replayed: int
    last_published_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """Progress of a replay.

    Attributes:
        action: id of its record in ``operator_actions``.
        done: number of events of ``total`` that this run has passed.
        replayed: number of events put back, including those of earlier runs.
        waiting: number of events put back but not yet claimed, for which the replay waits; 0: it continues.
    """

    action: int
    done: int
    total: int
    replayed: int
    waiting: int


class LookupTables(Protocol):
    """Finds one event or message in outbox, inbox and audit."""

    async def ids_between(self, first: UUID, last: UUID, *, limit: int) -> Sequence[Match]:
        """Return events and messages with an ID from ``first`` to ``last``, at most ``limit`` of each."""
        ...

    async def list_outbox(self, which: OutboxFilter) -> Sequence[OutboxSummary]:
        """List events, the latest first."""
        ...

    async def show_inbox(self, message_id: UUID) -> InboxRecord | None:
        """Return one message; None: never received, or pruned."""
        ...

    async def earlier_of_key(
        self, event: OutboxSummary, *, limit: int, dead_hold: bool
    ) -> Sequence[EarlierEvent]:
        """Return the events of its ordering key that this one waits for, earliest first.

        Those are unfinished, or DEAD if ``dead_hold``.
        """
        ...

    async def conflicts(self, message_id: UUID, *, limit: int) -> Sequence[UUID]:
        """Return the IDs under which other contents of this one were dead-lettered, the latest first."""
        ...

    async def session_is_held(self, session: str) -> bool:
        """Return whether a worker's session is held by any of its connections: the worker lives."""
        ...

    async def discarded(self, event_id: UUID) -> Discarded | None:
        """Return the record of the operator who discarded an event; None: nobody did."""
        ...


class ReplayTables(Protocol):
    """Puts events of the outbox back, with one record in the audit for each replay."""

    async def choose(
        self, which: OutboxFilter, *, limit: int | None, resumed: Replay | None = ...
    ) -> Sequence[Chosen]:
        """Return matching PUBLISHED and DEAD events by seq; of a resumed replay, the remaining ones.

        An event that was published since ``resumed`` began is left out: the replay itself may have put it
        back. The limit and the page of the filter do not matter.
        """
        ...

    async def begin(self, which: OutboxFilter, *, actor: str, reason: str) -> Replay:
        """Begin the record of a replay."""
        ...

    async def load(self, action: int) -> Replay:
        """Return an interrupted replay.

        Raises:
            WorkerError: there is none, it is finished, or the pipeline has begun it.
        """
        ...

    async def put_back(self, replay: Replay, portion: Sequence[Chosen]) -> Replay:
        """Put events back that are still PUBLISHED or DEAD; return the replay with its progress.

        Raises:
            WorkerError: another run continues the same replay.
        """
        ...

    async def not_taken(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Return the events that no worker has claimed yet, without those held back by one of their key."""
        ...

    async def finish(self, replay: Replay) -> None:
        """Close the record."""
        ...


class StreamInspection(Protocol):
    """Reads streams and consumers.

    Each method raises BrokerUnavailableError if the server does not answer, and ContractError if the request
    is not permitted, or if the stream or the consumer does not exist.
    """

    async def locate(self, stream: str, seq: int, message_id: str) -> StoredMessage | None:
        """Return the message at a sequence; None: it is gone, or another message is there."""
        ...

    async def deliveries(self, found: StoredMessage, *, consumer: str = ...) -> Sequence[ConsumerDelivery]:
        """Return the progress of ``consumer`` with a message, or of all durables of its stream."""
        ...

    async def search(self, stream: str, wanted: SearchedId, *, timeout_seconds: float) -> SearchResult | None:
        """Scan the headers of a stream for a message; return it, or the progress of the search."""
        ...

    async def evidence_of_loss(self, stream: str, row: PublishedRow) -> str:
        """Return the evidence that a stream lost a row's message, which it acknowledged; empty: none.

        A message that the stream may have dropped by its limits is not lost. One that somebody removed is.
        """
        ...

    async def first_stored_at(self, stream: str) -> datetime | None:
        """Return when a stream stored its oldest message; None: it is empty, or there is no such stream."""
        ...

    async def consumer_state(self, stream: str, durable: str) -> ConsumerState:
        """Return the backlog of a consumer."""
        ...


class DeadLetterRecords(Protocol):
    """Records in inbox and audit what an operator does to dead letters."""

    async def redriven(self, message_id: UUID, *, actor: str, reason: str) -> Redrive:
        """Open a dead-lettered message for another call of the handler, and begin a record."""
        ...

    async def begin_purge(self, selection: Mapping[str, Any], *, actor: str, reason: str) -> int:
        """Begin the record of a purge; return its ID."""
        ...

    async def record_purge(self, message_id: UUID | None, *, action: int, actor: str, reason: str) -> bool:
        """Record that a message is given up; False: the message is open again, keep its dead letter."""
        ...

    async def finish(self, action: int, outcome: ActionOutcome) -> None:
        """Record the outcome of a redrive or purge."""
        ...


class DeadLetterStore(Protocol):
    """The dead-letter stream."""

    async def list(
        self, which: DeadLetterFilter = ..., *, limit: int = ..., read_max: int | None = ...
    ) -> Sequence[DeadLetterSummary]:
        """List dead letters without their content, oldest first; read at most ``read_max`` (None: no limit).

        Raises:
            ContractError: the stream is missing, or reading it is forbidden.
        """
        ...

    def walk(
        self, which: DeadLetterFilter = ..., *, limit: int | None = ..., read_max: int | None = ...
    ) -> AsyncIterator[DeadLetterEntry]:
        """Yield dead letters one by one, like ``list``."""
        ...

    async def show(self, seq: int) -> DeadLetterEntry:
        """Return one dead letter.

        Raises:
            ContractError: there is none.
        """
        ...

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        """Read the message that was dead-lettered from its own stream.

        Raises:
            ContractError: the stream does not have it.
        """
        ...

    async def remove(self, seq: int) -> None:
        """Delete one dead letter for good.

        Raises:
            ContractError: there is none, or the stream forbids it.
        """
        ...
