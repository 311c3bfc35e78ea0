"""The ports: the five of SDS-047 in the order of its table, then those that two adapters have.

The docstrings are the contract; ``tests/contract`` holds each adapter and each fake of ``testing`` to it.
A call raises StoreUnavailableError where PostgreSQL cannot serve now, BrokerUnavailableError where NATS
cannot, and ContractError where a right or an object is missing. After StoreUnavailableError a write may or
may not have taken effect; repeating it is safe.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from sea_mq_worker.inbox.message import (
    LEASE_SECONDS,
    AbandonedDelivery,
    GivenBack,
    HandlerRequest,
    HandlerResult,
    InboxMessage,
    Lease,
    NotDelivered,
    Receipt,
)
from sea_mq_worker.nats.message import (
    InboundMessage,
    OutboundMessage,
    PublishOutcome,
    SearchedId,
    SearchResult,
    Stored,
)
from sea_mq_worker.outbox.event import (
    BATCH_DEFAULT,
    NO_BYTES_MAX,
    WHOLE,
    Claim,
    Died,
    Postponed,
    Published,
    Reaped,
    Released,
    Share,
)


class OutboxRepository(Protocol):
    """PORT-047-001: the queue that producers fill inside their own transactions.

    ``find_unpublished``, ``mark_published`` and ``increment_attempts`` are SDS-047's calls. The latter two
    change only an event that this repository claimed lately and still holds, or that nobody has claimed and
    that is due: they claim it first. They leave alone what another worker claimed, and return False.

    Every other write names the claim that it was made under and returns the ids that were still leased by it.
    A missing id was taken over after its lease expired: another worker has it, and its row was not changed.
    Each write is one statement, all or none.
    """

    @property
    def has_freed(self) -> bool:
        """Whether a settlement may have freed events that no commit announces."""

    async def find_unpublished(
        self,
        *,
        batch_max: int = BATCH_DEFAULT,
        bytes_max: int = NO_BYTES_MAX,
        event_bytes_max: int = NO_BYTES_MAX,
        following: Sequence[Claim] = (),
        share: Share = WHOLE,
    ) -> Claim:
        """Lease up to ``batch_max`` due events, oldest first, and count the attempt before it is made.

        Together they have at most ``bytes_max``, but one event is returned however large. An event of more
        than ``event_bytes_max`` is never read: the claim has its size in place of its content.

        No other worker gets them before the lease ends. An event with an ordering key comes only with every
        earlier unfinished event of its key, in the same claim in order, or in those of ``following``, which
        the caller publishes before. It follows none that has failed before. Keys outside of ``share`` are
        mostly left to other workers. Never waits; an empty claim means that no event is due.

        Raises:
            StoreTooSlowError: a smaller claim may be read in time.
            RowsRefusedError: some due event cannot be claimed and was not identified; an identified one is
                left out and named.
        """

    async def mark_published(self, id: str, *, stored: Stored | None = None) -> bool:  # noqa: A002 - SDS-047's
        """Record that the broker has the event (CMD-050), and where, if that is known."""

    async def increment_attempts(self, id: str, error: str, *, delay_seconds: float = 0.0) -> bool:  # noqa: A002
        """Record a failed attempt: due again after the delay, or DEAD with the last failure allowed."""

    async def mark_published_batch(
        self, claim: Claim, verdicts: Sequence[Published]
    ) -> Mapping[str, datetime]:
        """Record confirmed events with the stream and sequences that the broker named (CMD-050).

        Return when each was published, by its row. ``claim`` may be combined of several; an event is recorded
        under the token of any of them.
        """

    async def increment_attempts_batch(
        self, claim: Claim, verdicts: Sequence[Postponed | Died]
    ) -> frozenset[str]:
        """Record attempts without a confirmation: due again after their delay, or DEAD."""

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        """Give back events that were never attempted; they are due at once."""

    async def reap(self) -> Reaped:
        """End expired leases, and the wait of events that a clock set back keeps waiting.

        An expired lease costs its event a failure, so an event that kills its worker each time becomes DEAD.
        A lease taken in the future costs none. With many rows, one call may not find all.
        RowsRefusedError: some events could not be changed, and all others were.
        """

    async def take_over(self, session: str) -> int:
        """End the leases that were taken under a session that is gone; return their number.

        Costs each event a failure, as an expired lease does. An event is due at once after its first failure.
        Does nothing if the session's worker is back.
        RowsRefusedError: some event cannot be changed, and none was.
        """


class InboxRepository(Protocol):
    """PORT-047-002: the record that makes an effect happen once (POL-047-003, POL-047-004).

    ``insert``, ``mark_processed`` and ``record_error`` are SDS-047's calls. The latter two change only a
    message that this repository leased lately and still holds; else they return False.

    Every other write but ``insert_batch`` names leases and returns the message ids whose lease still held; it
    changed no other row. Each is one statement, all or none.

    A lease ends with its time. It has ended as well when its time is later than twice ``lease_seconds`` from
    now: it was taken before the database's clock was set back, and no worker has extended it since.
    """

    async def insert(self, msg: InboxMessage, *, lease_seconds: float = LEASE_SECONDS) -> Receipt:
        """Record a message, and lease it if it is to be handled (CMD-051)."""

    async def mark_processed(self, id: str) -> bool:  # noqa: A002
        """Record the handler's effect."""

    async def record_error(self, id: str, error: str) -> bool:  # noqa: A002
        """Record a handling without an effect, which costs an attempt, and end the lease."""

    async def insert_batch(
        self, entries: Sequence[InboxMessage], *, lease_seconds: float
    ) -> Sequence[Receipt]:
        """Record a batch in one round trip and lease the messages to handle; one receipt an entry, in order.

        A row that exists but is neither processed nor dead-lettered is not a duplicate to skip: it is leased
        again once no worker holds it, and keeps the stream position of this entry. Counts the attempt. Of
        equal ids in one batch the first is leased, the others are LeasedElsewhere.
        """

    async def overdue(
        self,
        *,
        stream: str,
        consumer: str,
        older_than_seconds: float,
        lease_seconds: float,
        after: str,
        limit: int,
    ) -> Sequence[InboxMessage]:
        """Return a consumer's messages without outcome or lease that were recorded before that age.

        Messages recorded in the future, before the clock was set back, are included. The oldest come first,
        after message id ``after`` where it is given, at most ``limit``.
        """

    async def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> frozenset[str]:
        """Extend leases that still hold to ``lease_seconds`` from now."""

    async def mark_processed_batch(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Record the handler's effect (CMD-051); only after this may the message be acknowledged."""

    async def record_error_batch(self, failures: Sequence[tuple[Lease, GivenBack]]) -> frozenset[str]:
        """Record handlings without an effect, end their leases, and give back uncounted attempts."""

    async def begin_dead_letter(self, lease: Lease, *, reason: str, detail: str) -> frozenset[str]:
        """Record, before the dead letter is published, that the stream may have it from now on."""

    async def mark_dead_lettered(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Record stored dead letters (CMD-052); only after this may their messages be acknowledged."""

    async def take_over(self, session: str) -> Sequence[AbandonedDelivery]:
        """End the leases that were taken under a session that is gone, and return their deliveries.

        The attempts stay counted. Does nothing if the session's worker is back.
        RowsRefusedError: some lease cannot be ended, and none was.
        """


class JetStreamPublisher(Protocol):
    """PORT-047-003: publishes to the one stream it is bound to; each call is one attempt, payloads unchanged.

    An acknowledgement counts only from that stream. Errors are returned as outcomes, never raised.
    """

    @property
    def connected(self) -> bool:
        """Whether a publish could reach the server now, as far as is known."""

    @property
    def keeps_order(self) -> bool:
        """Whether the stream would store no message of a batch behind one that it did not store.

        It can change from batch to batch; a batch that relies on it is sent ``in_order``.
        """

    @property
    def duplicate_window_seconds(self) -> float:
        """The deduplication window when it was last read: how long the stream remembers a message id."""

    async def read_duplicate_window(self) -> float:
        """Return the deduplication window now, which may have become shorter; 0: the server reports none."""

    @property
    def max_payload(self) -> int:
        """Most bytes of headers and body that the server accepts; it never stores a larger message."""

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Make one attempt for one message; ``headers`` carries its ``Nats-Msg-Id``.

        Stored with ``duplicate`` only means that the stream knows the id.
        """

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float, in_order: bool = False
    ) -> Sequence[PublishOutcome]:
        """Make one attempt for each message, sent in order without waiting in between; one outcome each.

        Return within ``timeout_seconds``; a message without a response by then is Unknown, one not sent is
        Unsent. Whatever else writes to the stream, Stored means that the stream has this message at the
        sequence. The message is Rejected if the stream has another one under its id, or if it is not
        ``repeated`` and the one under its id cannot be read.
        """

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        """Search for messages by their ids; return the latest copy of each, or the progress of the search.

        For messages outside the deduplication window, where publishing again could store a second copy. A
        search takes a bounded time; the next one continues from the progress of an unfinished one. A search
        for nothing only asks whether the stream answers. BrokerUnavailableError: it could not be read.
        """


class Settler(Protocol):
    """Acknowledges messages to the server.

    Acknowledgements are sent without waiting for the server: a lost one only costs a redelivery, which the
    inbox recognises. While the connection is down they are dropped. A message that was read and not
    delivered has no reply subject, so nothing is sent for it.
    """

    async def ack(self, msg: InboundMessage) -> None:
        """Settle the message for good."""

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        """Request redelivery after a delay; of two requests for one delivery, the later counts."""

    async def in_progress(self, msg: InboundMessage) -> None:
        """Restart the message's ack_wait."""


class JetStreamConsumer(Settler, Protocol):
    """PORT-047-004: one durable pull consumer with explicit acknowledgement.

    Each call that asks the server raises BrokerUnavailableError where the connection or the consumer's leader
    is away, and ContractError where the consumer is gone or forbidden.
    """

    @property
    def name(self) -> str:
        """The durable's name."""

    @property
    def stream(self) -> str:
        """The stream's name."""

    async def fetch(self, batch: int, *, bytes_max: int | None = None) -> Sequence[InboundMessage]:
        """Wait for messages; return 1 to ``batch`` of them, or none when a bounded wait is over.

        The server never delivers more than requested: at most ``bytes_max``, except that a larger message
        comes alone.
        """

    async def ack_batch(self, msgs: Sequence[InboundMessage]) -> None:
        """Settle several messages for good, in one write to the server."""

    async def is_shared(self) -> bool:
        """Return whether another client waits for messages, or got some since the last call.

        Call it only between fetches; a fetch begins the count of the others' messages anew.
        """

    async def give_back(self, reply: str, *, delay_seconds: float) -> None:
        """Request redelivery, after a delay, of a delivery that another worker had."""

    async def find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        """Return, by stream sequence, those of the messages that the consumer will not deliver (again).

        Each is returned as stored now, without a reply subject, or None where the stream no longer has it.
        A message that may still be delivered is left out, and so is one whose state is unknown or that lies
        behind a few MB of others. ContractError: reading the stream is forbidden, too.
        """

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        """Read messages that the consumer cannot deliver yet, while max_ack_pending messages are unsettled.

        Return the first undelivered messages behind ``after_seq``, without reply subjects; the consumer
        delivers them later anyway. Return None while it can deliver, or is paused. ContractError: reading the
        stream is forbidden, too.
        """


class EventHandler(Protocol):
    """PORT-047-005: applies a message's effect in the service; must be idempotent by message id."""

    async def handle(self, event_type: str, payload: bytes) -> HandlerResult:
        """Call the handler for a message of one's own, with a new id: SDS-047's call."""
        return await self.handle_request(HandlerRequest.new(event_type, payload))

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once, within one total deadline; return errors in the result, never raise them."""
        ...

    async def reach(self) -> NotDelivered | None:
        """Open a connection and send nothing; return the reason why no call can be made, or None."""
        ...


class Events(Protocol):
    """Takes the worker's own events as they happen; must be quick and must not raise."""

    def emit(self, key: str, /, **fields: Any) -> None:
        """Take note of an event; ``telemetry.events`` has its row, with these fields."""


class Wakeup(Protocol):
    """A shortcut for polling, which is the guarantee: a wait may end for no reason, or miss an event."""

    @property
    def announces(self) -> bool:
        """Whether every commit from now on ends a wait, so that a claim between two waits misses none."""

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when an event may have been committed since the last call, or after the time-out.

        Never raises for a connection that is down; waits for the time-out instead.
        """

    def wake(self) -> None:
        """End the present wait."""


class KeyShare(Protocol):
    """Divides the ordering keys among the workers that serve them.

    Claims of two workers from one key are correct, and cost more. So a share is advice: workers that do not
    know of each other may have the same keys for a while, or none may have a key.
    """

    async def take(self, *, serves: bool) -> Share:
        """Return the keys of this worker now.

        ``serves``: others may leave those to it. Without that, they are what it would have beside the others,
        which have all. Cheap enough to be called before each claim.
        """

    async def leave(self) -> None:
        """Let others serve the keys of this worker at once."""


class Partitions(Protocol):
    """Creates daily partitions of an outbox ahead; does nothing where the outbox is a single table."""

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Create the missing partitions of today and the next ``days_ahead`` days; return their names.

        Safe to call concurrently. A partition that is locked is left to the next call.
        ContractError: this worker has no right to create partitions.
        """


class ExhaustedMessages(Settler, Protocol):
    """Messages that reached max_deliver, which no lag shows any more; returned until acknowledged here."""

    async def fetch(self) -> Sequence[InboundMessage]:
        """Return exhausted messages, or none after a bounded wait."""


class OtherSession(NamedTuple):
    """One side of another worker, and whether that worker has ended."""

    session: str
    """Identifies the worker's process; part of the tokens of its leases."""
    side: str
    """``outbox`` or ``inbox``."""
    worker: str
    """Name of the worker, for people."""
    is_gone: bool
    """No connection of the worker is left."""


class WorkerSessions(Protocol):
    """The sessions of the workers of one store, by which a worker sees that another one has ended.

    The own session lasts as long as this worker.
    """

    async def others(self) -> Sequence[OtherSession]:
        """Return the sessions of other workers that began since the store last lost all sessions.

        StoreUnavailableError: the own session is interrupted; no earlier result holds any more.
        """

    async def forget(self, session: OtherSession) -> None:
        """Remove a session that is gone; one whose worker has come back stays."""

    async def wait_for_change(self, *, timeout_seconds: float) -> None:
        """Return when another worker's session begins, or the own one again, or after the time-out."""
