"""Ports PORT-047-003 and PORT-047-004: publishing to one stream, consuming from one durable consumer."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sea_mq_worker.domain.messages import InboundMessage, OutboundMessage
from sea_mq_worker.domain.outcomes import PublishOutcome
from sea_mq_worker.domain.stream_search import SearchedId, SearchResult


class JetStreamPublisher(Protocol):
    """Publishes to the one stream it is bound to; each call is one attempt and changes no payload.

    An acknowledgement is believed only from that stream. Trouble is told in outcomes, never raised.
    """

    @property
    def connected(self) -> bool:
        """As far as is known, a publish could reach the server now."""
        ...

    @property
    def keeps_order(self) -> bool:
        """Nothing of a batch is stored behind a message of it that was not."""
        ...

    @property
    def duplicate_window_seconds(self) -> float:
        """How long the stream remembers a message id."""
        ...

    @property
    def max_payload(self) -> int:
        """Bytes of headers and body that the server takes; what has more is never stored."""
        ...

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Make one attempt for one message; ``headers`` carries its ``Nats-Msg-Id``."""
        ...

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float
    ) -> Sequence[PublishOutcome]:
        """Make one attempt for each message, sent in order without waiting in between; one outcome each.

        Returns within ``timeout_seconds``; what is unanswered by then is Unknown, what was not sent Unsent.
        A message that is not ``repeated`` and whose id the stream has given to another one is Refused.
        """
        ...

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        """Look for messages by their ids; return the latest copy of each, or how far the search came.

        For what is older than the duplicate window, where publishing again could store a second copy. A
        search takes a bounded time; one that is not over by then goes on from what was returned.

        Raises:
            BrokerUnavailableError: the stream could not be read.
        """
        ...


class Settler(Protocol):
    """Hears what becomes of a message.

    Acknowledgements are sent without waiting for the server: a lost one only costs a redelivery, which the
    inbox answers. While the connection is down they are dropped. A message that was read and not delivered
    has nobody to hear of it.
    """

    async def ack(self, msg: InboundMessage) -> None:
        """Settle the message for good."""
        ...

    async def nak(self, msg: InboundMessage, *, delay_seconds: float) -> None:
        """Ask for redelivery after a delay; asked again before it is over, the later word counts."""
        ...

    async def in_progress(self, msg: InboundMessage) -> None:
        """Start the message's ack_wait anew."""
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

        The server never hands out more than was asked for: no more than ``bytes_max``, save that a message
        larger than that comes alone.

        Raises:
            BrokerUnavailableError: the connection or the consumer's leader is away.
            ContractError: the consumer is gone or forbidden.
        """
        ...

    async def find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        """Of messages recorded before, tell those that will not be delivered (again), by stream sequence.

        Each as the stream has it now, with nobody to acknowledge it to, or None where the stream has it no
        longer. A message that may still be delivered is left out, and so is one that is not known yet, or
        that lies behind a few MB of others.

        Raises:
            BrokerUnavailableError: as ``fetch``.
            ContractError: as ``fetch``, or reading the stream is forbidden.
        """
        ...

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage]:
        """Read what the consumer will deliver only once it has room: max_ack_pending messages are unsettled.

        The first messages behind ``after_seq`` that it has not delivered, each with nobody to acknowledge it
        to; it delivers them later all the same. None while it has room, or nothing is left.

        Raises:
            BrokerUnavailableError: as ``fetch``.
            ContractError: as ``fetch``, or reading the stream is forbidden.
        """
        ...


class ExhaustedMessages(Settler, Protocol):
    """Messages that the server has given up on: max_deliver reached, and invisible in every lag.

    They come again until they are acknowledged here.
    """

    async def fetch(self) -> Sequence[InboundMessage]:
        """Return stranded messages, or none after a bounded wait.

        Raises:
            BrokerUnavailableError: as JetStreamConsumer.fetch.
        """
        ...
