"""Ports PORT-047-003 and PORT-047-004: publishing to one stream, consuming from one durable consumer."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sea_mq_worker.domain.messages import InboundMessage, OutboundMessage
from sea_mq_worker.domain.outcomes import PublishOutcome
from sea_mq_worker.domain.stream_search import SearchedId, SearchResult


class JetStreamPublisher(Protocol):
    """Publishes to the one stream it is bound to; each call is one attempt and changes no payload.

    An acknowledgement counts only from that stream. Errors are returned as outcomes, never raised.
    """

    @property
    def connected(self) -> bool:
        """Whether a publish could reach the server now, as far as is known."""
        ...

    @property
    def keeps_order(self) -> bool:
        """Whether the stream would store no message of a batch behind one that it did not store.

        It can change from batch to batch; a batch that relies on it is sent ``in_order``.
        """
        ...

    @property
    def duplicate_window_seconds(self) -> float:
        """The deduplication window when it was last read: how long the stream remembers a message id."""
        ...

    async def read_duplicate_window(self) -> float:
        """Return the deduplication window now; 0 where the server does not report it.

        It may have become shorter since it was last read.
        """
        ...

    @property
    def max_payload(self) -> int:
        """Most bytes of headers and body that the server accepts; it never stores a larger message."""
        ...

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Make one attempt for one message; ``headers`` carries its ``Nats-Msg-Id``.

        Stored with ``duplicate`` only means that the stream knows the id.
        """
        ...

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float, in_order: bool = False
    ) -> Sequence[PublishOutcome]:
        """Make one attempt for each message, sent in order without waiting in between; one outcome each.

        Return within ``timeout_seconds``; a message without a response by then is Unknown, one not sent is
        Unsent. Whatever else writes to the stream, Stored means that the stream has this message at the
        sequence. The message is Rejected if the stream has another one under its id, or if it is not
        ``repeated`` and the one under its id cannot be read.
        """
        ...

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        """Search for messages by their ids; return the latest copy of each, or the progress of the search.

        For messages outside the deduplication window, where publishing again could store a second copy. A
        search takes a bounded time; the next one continues from the progress of an unfinished one. A search
        for nothing only asks whether the stream answers.

        Raises:
            BrokerUnavailableError: the stream could not be read.
        """
        ...


class Settler(Protocol):
    """Acknowledges messages to the server.

    Acknowledgements are sent without waiting for the server: a lost one only costs a redelivery, which the
    inbox recognises. While the connection is down they are dropped. A message that was read and not
    delivered has no reply subject, so nothing is sent for it.
    """

    async def ack(self, msg: InboundMessage) -> None:
        """Settle the message for good."""
        ...

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        """Request redelivery after a delay; of two requests for one delivery, the later counts."""
        ...

    async def in_progress(self, msg: InboundMessage) -> None:
        """Restart the message's ack_wait."""
        ...


class JetStreamConsumer(Settler, Protocol):
    """One durable pull consumer with explicit acknowledgement."""

    @property
    def name(self) -> str:
        """The durable's name."""
        ...

    @property
    def stream(self) -> str:
        """The stream's name."""
        ...

    async def fetch(self, batch: int, *, bytes_max: int | None = None) -> Sequence[InboundMessage]:
        """Wait for messages; return 1 to ``batch`` of them, or none when a bounded wait is over.

        The server never delivers more than requested: at most ``bytes_max``, except that a larger message
        comes alone.

        Raises:
            BrokerUnavailableError: the connection or the consumer's leader is away.
            ContractError: the consumer is gone or forbidden.
        """
        ...

    async def ack_batch(self, msgs: Sequence[InboundMessage]) -> None:
        """Settle several messages for good, in one write to the server."""
        ...

    async def is_shared(self) -> bool:
        """Return whether another client waits for messages, or got some since the last call.

        Call it only between fetches; a fetch begins the count of the others' messages anew.

        Raises:
            BrokerUnavailableError: as ``fetch``.
            ContractError: as ``fetch``.
        """
        ...

    async def give_back(self, reply: str, *, delay_seconds: float) -> None:
        """Request redelivery, after a delay, of a delivery that another worker had."""
        ...

    async def find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        """Return, by stream sequence, those of the messages that the consumer will not deliver (again).

        Each is returned as stored now, without a reply subject, or None where the stream no longer has it.
        A message that may still be delivered is left out, and so is one whose state is unknown or that lies
        behind a few MB of others.

        Raises:
            BrokerUnavailableError: as ``fetch``.
            ContractError: as ``fetch``, or reading the stream is forbidden.
        """
        ...

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        """Read messages that the consumer cannot deliver yet, while max_ack_pending messages are unsettled.

        Return the first undelivered messages behind ``after_seq``, without reply subjects; the consumer
        delivers them later anyway. Return None while it can deliver, or is paused.

        Raises:
            BrokerUnavailableError: as ``fetch``.
            ContractError: as ``fetch``, or reading the stream is forbidden.
        """
        ...


class ExhaustedMessages(Settler, Protocol):
    """Exhausted messages: those that reached max_deliver, which no lag shows any more.

    The port returns them again until they are acknowledged here.
    """

    async def fetch(self) -> Sequence[InboundMessage]:
        """Return exhausted messages, or none after a bounded wait.

        Raises:
            BrokerUnavailableError: as JetStreamConsumer.fetch.
        """
        ...
