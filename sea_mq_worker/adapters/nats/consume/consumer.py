"""Adapter of PORT-047-004: consumes from one durable pull consumer, and never creates or changes it."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.decoding import delivery
from sea_mq_worker.adapters.nats.consume.pull import PullEnd, PullResult, PullSubscription
from sea_mq_worker.adapters.nats.consume.undelivered import ahead, find_undeliverable
from sea_mq_worker.adapters.nats.errors import STREAMS_APPLY, plain
from sea_mq_worker.adapters.nats.server_info import PULL_SECONDS_MIN, ConsumerInfo, consumer_info
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError, LimitsError
from sea_mq_worker.domain.messages import InboundMessage

_ACK = b"+ACK"
_NANOSECONDS = 10**9
_NO_LIMIT = 2**31 - 1
_PASSING = ("Leadership Change", "Server Shutdown", "Exceeded MaxWaiting")
"""Ends of a request after which another one can succeed."""
_GONE = ("503", "409 Consumer Deleted", "409 Exceeded MaxRequest")
"""Ends of a request after which another one can succeed, by what the consumer is then."""
_REASONS = {"": "no answer to a pull request", "503": "no leader takes pull requests now (503)"}


class NatsJetStreamConsumer:
    """Pulls from one durable consumer.

    Args:
        connection: of the inbound side.
        stream: the stream's name.
        durable: the consumer's name.
        wait_seconds: how long a fetch waits for the first message.
        objection: returns why the worker must not consume with these limits; empty if it may.

    Attributes:
        name: the durable's name.
        ack_wait_seconds: the server's limit, like the following; before ``start`` its default.
        max_deliver: -1 for no limit.
        max_ack_pending: a very large number if there is no limit.
        subjects: filters; ``>`` if the consumer has none.
        is_known: nothing is known against the consumer; a fetch looks first, while there is.
    """

    def __init__(
        self,
        *,
        connection: NatsConnection,
        stream: str,
        durable: str,
        wait_seconds: float = 5.0,
        objection: Callable[[ConsumerInfo], str] = lambda _info: "",
    ) -> None:
        self.name = durable
        self.stream = stream
        self.ack_wait_seconds = 30.0
        self.max_deliver = -1
        self.max_ack_pending = 1000
        self.subjects: tuple[str, ...] = (">",)
        self.is_known = True
        self._request_seconds = wait_seconds
        self._request_max = _NO_LIMIT
        self._request_bytes_max: int | None = None
        self._objection = objection
        self._connection = connection
        self._wait_seconds = wait_seconds
        self._next = connection.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{durable}")
        self._pulls = PullSubscription(connection, self._next, give_back=self._give_back)
        self._turn = asyncio.Lock()
        self._delivered: int | None = None
        """The consumer's deliveries at the last look, if nothing was fetched since."""

    async def start(self) -> None:
        """Verify that the consumer exists and fits, and note its limits.

        Raises:
            BrokerUnavailableError: the server did not answer.
            ContractError: it is missing, forbidden or unfit; LimitsError if the settings contradict it.
        """
        self.is_known = False
        self._judge(await consumer_info(self._connection, self.stream, self.name))

    async def look(self) -> ConsumerInfo:
        """Return the consumer's state; if it does not fit any more, the next fetch raises the reason."""
        info = await consumer_info(self._connection, self.stream, self.name)
        with contextlib.suppress(ContractError):
            self._judge(info)
        return info

    def _judge(self, info: ConsumerInfo) -> None:
        """Note the consumer's limits; while it does not fit, each fetch looks again and raises the reason.

        Raises:
            ContractError: it does not fit.
        """
        self.is_known = False
        if info.unfit:
            raise ContractError(
                f"{self._label} is unfit ({info.unfit}): it must be a pull consumer without priority groups, "
                f"with explicit acknowledgement, bodies and no max_expires below {PULL_SECONDS_MIN:g} s; "
                f"delete it with `nats consumer rm {self.stream} {self.name}` and run {STREAMS_APPLY}"
            )
        if text := self._objection(info):
            raise LimitsError(text)
        self.ack_wait_seconds = info.ack_wait_seconds
        self.max_deliver = info.max_deliver
        self.max_ack_pending = info.max_ack_pending if info.max_ack_pending > 0 else _NO_LIMIT
        self.subjects = info.filters or (">",)
        self._request_max = info.max_batch or _NO_LIMIT
        self._request_bytes_max = info.max_bytes or None
        self._request_seconds = min(self._wait_seconds, info.max_expires_seconds or self._wait_seconds)
        self.is_known = True

    async def fetch(self, batch: int, *, bytes_max: int | None = None) -> Sequence[InboundMessage]:
        """Wait for messages and return those available; none after ``wait_seconds``."""
        async with self._turn:
            self._delivered = None
            if not self._connection.is_connected:
                raise BrokerUnavailableError(f"{self._label}: the connection is down")
            self._connection.check_replies_allowed()
            if not self.is_known:
                await self.start()
            most = self._request_bytes_max
            if most is not None:
                bytes_max = most if bytes_max is None else min(most, bytes_max)
            try:
                pulled = await self._pulls.fetch(
                    min(batch, self._request_max), bytes_max=bytes_max, wait_seconds=self._request_seconds
                )
            except nats.errors.Error as error:
                raise BrokerUnavailableError(
                    f"{self._label}: the pull request failed ({plain(error)})"
                ) from error
        if not pulled.messages:
            await self._raise_reason(pulled)
        return [delivery(msg) for msg in pulled.messages]

    async def is_shared(self) -> bool:
        """Look for open pull requests and deliveries that are not this worker's."""
        info = await consumer_info(self._connection, self.stream, self.name)
        own = self._pulls.has_request  # it can have deliveries
        before, self._delivered = self._delivered, None if own else info.delivered_count
        return info.waiting > own or (before is not None and info.delivered_count > before)

    async def ack(self, msg: InboundMessage) -> None:
        """Settle the message (POL-047-005, POL-047-006)."""
        await self._send(_ACK, msg.reply)

    async def ack_batch(self, msgs: Sequence[InboundMessage]) -> None:
        await self._send(_ACK, *(msg.reply for msg in msgs))

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        """Request redelivery after a delay (POL-047-007)."""
        await self._send(_nak(delay_seconds), msg.reply)

    async def give_back(self, reply: str, *, delay_seconds: float) -> None:
        """Request redelivery: the server takes a NAK from any client."""
        await self._send(_nak(delay_seconds), reply)

    async def in_progress(self, msg: InboundMessage) -> None:
        await self._send(b"+WPI", msg.reply)

    async def find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        """Compare with the server's delivered and acknowledged sequences, and read the others back."""
        return await find_undeliverable(self._connection, self.stream, self.name, seqs)

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        """Read the stream itself while the consumer has reached max_ack_pending."""
        return await ahead(self._connection, self.stream, self.name, after_seq, limit)

    async def close(self) -> None:
        """Stop pulling; unexpected messages go back to the server."""
        await self._pulls.close()

    @property
    def _label(self) -> str:
        return f"consumer {self.name} of stream {self.stream}"

    async def _send(self, verb: bytes, *replies: str) -> None:
        """Reply, or drop the reply while the connection is down: nats-py would send it much later.

        A message that was read from the stream, and not delivered, has no reply subject.
        """
        known = [reply for reply in replies if reply]
        if known and self._connection.is_connected:
            end = b" %d\r\n%b\r\n" % (len(verb), verb)
            await self._connection.client.write([b"PUB %b%b" % (reply.encode(), end) for reply in known])

    async def _give_back(self, msgs: Sequence[Msg], delay_seconds: float) -> None:
        await self._send(_nak(delay_seconds), *(msg.reply for msg in msgs))

    async def _raise_reason(self, pulled: PullResult) -> None:
        """Raise the reason for a pull without messages, unless the stream is idle."""
        match pulled.ended.result():
            case PullEnd.DONE:
                return
            case PullEnd.DENIED:
                raise ContractError(f"the worker has no permission to publish to {self._next}; grant it")
            case PullEnd.DISCONNECTED:
                raise BrokerUnavailableError(f"{self._label}: the connection broke")
        if not any(text in pulled.status for text in _PASSING):
            await self.start()
            if pulled.status and not pulled.status.startswith(_GONE):
                raise ContractError(f"{self._label} refuses to deliver messages: {pulled.status}")
        reason = _REASONS.get(pulled.status, pulled.status)
        raise BrokerUnavailableError(f"{self._label}: {reason}")


def _nak(delay_seconds: float) -> bytes:
    return b"-NAK " + json.dumps({"delay": int(delay_seconds * _NANOSECONDS)}).encode()
