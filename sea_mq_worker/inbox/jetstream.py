"""One durable pull consumer: its pull requests, and its port.

The server gives messages to a pull request until it is full, has expired, or has brought all there are. It
cannot take a request back. A subscription that ends early loses the messages on their way: across accounts
the server does not notice, and delivers them again only after ack_wait. So one subscription lasts as long as
the consumer, a request outlives the fetch that made it, the next fetch takes what it still brings, and the
subscription ends when nothing comes::

    fetch      sends request 1, for ten    m1 m2, and no more for a moment: max_ack_pending is reached
    (between)                              m3 comes, and waits up to a second for a fetch, or goes back
    fetch      takes m3                    request 1 goes on
    fetch      waits for request 1         "408 Request Timeout": request 1 is over, nothing came
    fetch      sends request 2
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, LimitsError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.errors import STREAMS_APPLY, plain
from sea_mq_worker.nats.info import (
    PULL_SECONDS_MIN,
    READ_BYTES_MAX,
    ConsumerInfo,
    consumer_info,
    read_back,
    read_on,
)
from sea_mq_worker.nats.message import InboundMessage, ack_tokens, size_of

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription


_ACKS = "$JS.ACK."
_DRAIN_SECONDS_MAX = 2.0
_BYTES_MAX = 4 * 1024 * 1024
"""Cap on a request, so that the server does not close a slow connection as a slow consumer."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_OTHERS_PENDING = "Requests Pending"
"""Other requests may take all waiting messages; only a request that waits for later ones is accepted then."""
_SOCKET_CLOSED = (OSError, RuntimeError)
"""Errors of a write to a socket that has just broken; uvloop raises RuntimeError."""
_SETTLED_SECONDS = 0.02
_ANSWER_SECONDS = 1.0
_BUSY_SECONDS = 1.0
"""Longest request while messages come: if max_ack_pending is reached, the request lasts until it expires."""
_HELD_SECONDS = 1.0
"""Longest wait of a message for the next fetch."""
_QUIET_SECONDS = 0.25
_GIVE_BACK_SECONDS = 0.1
_SILENCES_MAX = 2
_NANOSECONDS = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEARTBEAT = "100"


class PullEnd(Enum):
    """End of a fetch."""

    DONE = auto()
    """The batch is full, or the server reported the end of the request."""
    CUT = auto()
    """Messages came, but no end: max_ack_pending is reached, and the request goes on."""
    SILENCE = auto()
    """Neither a message nor a status came; the request is lost."""
    DISCONNECTED = auto()
    DENIED = auto()
    REFUSED = auto()
    """The server replied with another status; see ``PullResult.status``."""


@dataclass(slots=True)
class PullResult:
    """One fetch and its messages so far."""

    batch: int
    ended: asyncio.Future[PullEnd]
    messages: list[Msg] = field(default_factory=list)
    status: str = ""

    def end(self, how: PullEnd) -> None:
        """Record the end; the first one counts."""
        if not self.ended.done():
            self.ended.set_result(how)

    def take(self, msg: Msg) -> None:
        """Add a message; the others of the batch follow it at once, unless max_ack_pending is reached."""
        self.messages.append(msg)
        if len(self.messages) == self.batch:
            self.end(PullEnd.DONE)
        elif len(self.messages) == 1:
            self.ended.get_loop().call_later(_SETTLED_SECONDS, self.end, PullEnd.CUT)


@dataclass(slots=True)
class _Request:
    """A request that the server holds; it may still bring ``left`` of ``batch`` messages."""

    token: str
    batch: int
    left: int
    expires_at: float
    over: asyncio.Future[None]


class PullSubscription:
    """Pulls messages of one durable consumer; gives back those that no fetch takes, after a delay."""

    def __init__(
        self,
        connection: NatsConnection,
        subject: str,
        *,
        give_back: Callable[[Sequence[Msg], float], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._give_back = give_back
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._fetch: PullResult | None = None
        self.request: _Request | None = None
        """The one that the server holds."""
        self._held: list[Msg] = []
        self._returning: asyncio.Task[None] | None = None
        self._is_busy = True
        self._silences = 0
        self._active_at = 0.0
        self._count = 0
        connection.listen(self._on_event)

    async def fetch(self, batch: int, *, bytes_max: int | None = None, wait_seconds: float) -> PullResult:
        """Take messages of the request under way, or of a new one; wait for at most a second beyond its end.

        The messages have at most a few MB in all, and at most ``bytes_max``; a single one may be larger.
        """
        at_once = max(_BYTES_MAX, 2 * self._connection.client.max_payload)
        limit = at_once if bytes_max is None else max(1, min(at_once, bytes_max))  # 0 would mean no limit
        goes_on = self.request is not None
        pulled = await self._pull(batch, wait_seconds, max_bytes=limit)
        if goes_on and pulled.ended.result() is PullEnd.DONE and not pulled.messages:
            pulled = await self._pull(batch, wait_seconds, max_bytes=limit)
        if _OTHERS_PENDING in pulled.status and not pulled.messages:
            pulled = await self._pull(batch, wait_seconds, max_bytes=limit, no_wait=False)
        if _TOO_LARGE in pulled.status and not pulled.messages:
            pulled = await self._pull(1, wait_seconds)
        self._is_busy = bool(pulled.messages)
        return pulled

    async def close(self) -> None:
        """Unsubscribe when nothing has come for a moment, and give back what came."""
        loop = asyncio.get_running_loop()
        while self._connection.is_connected and (request := self.request):
            rest = min(request.expires_at, self._active_at + _QUIET_SECONDS) - loop.time()
            if rest <= 0:
                break
            await asyncio.wait((request.over,), timeout=rest)
        self._end_request()
        await self._unsubscribe()
        await self._return_held()
        self._watch_held()

    async def _pull(self, batch: int, wait_seconds: float, **options: int | bool) -> PullResult:
        loop = asyncio.get_running_loop()
        pulled = self._fetch = PullResult(batch, loop.create_future())
        deadline = None
        try:
            while self._held and len(pulled.messages) < batch:
                pulled.take(self._held.pop(0))
            self._watch_held()
            if self.request is None and not pulled.messages:
                await self._send(batch, wait_seconds, options)
            if self.request is None:
                pulled.end(PullEnd.DONE)
            else:
                lost_at = self.request.expires_at + _ANSWER_SECONDS
                deadline = loop.call_at(lost_at, pulled.end, PullEnd.SILENCE)
            how = await pulled.ended
        except BaseException:
            self._fetch, self._held = None, [*pulled.messages, *self._held]
            await self.close()
            raise
        finally:
            self._fetch = None
            if deadline is not None:
                deadline.cancel()
        if how is not PullEnd.SILENCE:
            self._silences = 0
            return pulled
        self._silences += 1
        self._end_request()
        if self._silences == _SILENCES_MAX:  # the server may have lost the subscription
            self._silences = 0
            await self._unsubscribe()
        return pulled

    async def _send(self, batch: int, wait_seconds: float, options: Mapping[str, int | bool]) -> None:
        client, loop = self._connection.client, asyncio.get_running_loop()
        if self._subscription is None:
            self._inbox = client.new_inbox()
            self._subscription = await client.subscribe(
                f"{self._inbox}.*", cb=self._on_message, pending_bytes_limit=0
            )
        seconds = min(wait_seconds, _BUSY_SECONDS) if self._is_busy else wait_seconds
        self._count += 1
        self._active_at = loop.time()
        self.request = _Request(
            token=str(self._count),
            batch=batch,
            left=batch,
            expires_at=self._active_at + seconds,
            over=loop.create_future(),
        )
        request = {"batch": batch, "expires": int(seconds * _NANOSECONDS), "no_wait": True, **options}
        reply = f"{self._inbox}.{self.request.token}"
        await client.publish(self._subject, json.dumps(request).encode(), reply=reply)

    def _end_request(self) -> None:
        """Forget the request: the server has ended it, or does not have it."""
        if self.request is not None:
            self.request.over.set_result(None)
            self.request = None

    async def _unsubscribe(self) -> None:
        """End the subscription; messages that the server had already sent still arrive."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        with contextlib.suppress(nats.errors.Error, TimeoutError, *_SOCKET_CLOSED):
            if self._connection.is_connected:
                drained = subscription.drain()  # type: ignore[no-untyped-call]
                await asyncio.wait_for(drained, _DRAIN_SECONDS_MAX)
            else:
                await subscription.unsubscribe()

    async def _on_message(self, msg: Msg) -> None:
        if not msg.reply:
            self._on_status(msg)
            return
        if not msg.reply.startswith(_ACKS):
            return
        self._active_at = asyncio.get_running_loop().time()
        if self.request is not None:
            self.request.left -= 1
            if not self.request.left:
                self._end_request()
        if self._fetch is not None and not self._fetch.ended.done():
            self._fetch.take(msg)
        else:
            self._held.append(msg)
            if self._returning is None:
                self._watch_held()

    def _on_status(self, msg: Msg) -> None:
        headers = msg.headers or {}
        # nats-py adds a header to an empty description.
        description = headers.get("Description", "").partition("\n")[0]
        status = f"{headers.get('Status', '')} {description}".strip()
        request = self.request
        if (
            request is None
            or msg.subject.rpartition(".")[2] != request.token
            or status.startswith(_HEARTBEAT)
        ):
            return  # a status that comes late, as after a pause of this process, ends nothing
        self._end_request()
        if self._fetch is None or self._fetch.ended.done():
            return
        self._fetch.status = status
        finished = status.startswith(("404", "408")) or "Batch Completed" in status
        finished = finished or (_TOO_LARGE in status and request.left < request.batch)
        self._fetch.end(PullEnd.DONE if finished else PullEnd.REFUSED)

    def _watch_held(self) -> None:
        """Give back messages that no fetch takes soon, as while the handler's circuit is open."""
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        if self._held:
            self._returning = asyncio.create_task(self._return_later())

    async def _return_later(self) -> None:
        while self._held:
            await asyncio.sleep(_HELD_SECONDS)
            if self._connection.is_connected:
                await self._return_held()
        self._returning = None

    async def _return_held(self) -> None:
        """Give messages back, but not to the request under way."""
        held, self._held = self._held, []
        rest = self.request.expires_at - asyncio.get_running_loop().time() if self.request else 0.0
        if held:
            await self._give_back(held, max(_GIVE_BACK_SECONDS, rest))

    def _on_event(self, event: str, text: str) -> None:
        if event == "disconnected":
            how = PullEnd.DISCONNECTED
        elif event == "denied" and self._connection.replies_denied:
            how = PullEnd.SILENCE
        elif event == "denied" and text == self._subject.lower():
            how = PullEnd.DENIED
        else:
            return
        self._end_request()
        if self._fetch is not None:
            self._fetch.end(how)


_ACK = b"+ACK"
_NO_LIMIT = 2**31 - 1
_PASSING = ("Leadership Change", "Server Shutdown", "Exceeded MaxWaiting")
"""Ends of a request after which another one can succeed."""
_GONE = ("503", "409 Consumer Deleted", "409 Exceeded MaxRequest")
"""Ends of a request after which another one can succeed, by what the consumer is then."""
_REASONS = {"": "no answer to a pull request", "503": "no leader takes pull requests now (503)"}


class NatsJetStreamConsumer:
    """PORT-047-004: pulls from one durable consumer, and never creates or changes it.

    Args:
        wait_seconds: how long a fetch waits for the first message.
        handler_timeout_seconds: must be below the consumer's ack_wait.
        attempts_max: must be below the consumer's max_deliver, so that the worker decides before the server.
    """

    def __init__(
        self,
        *,
        connection: NatsConnection,
        stream: str,
        durable: str,
        wait_seconds: float = 5.0,
        handler_timeout_seconds: float = 0.0,
        attempts_max: int = 0,
    ) -> None:
        self.name = durable
        self.stream = stream
        self.info: ConsumerInfo | None = None
        """The consumer's limits, once it was found to fit."""
        self.is_known = True
        """Nothing is known against the consumer; a fetch looks first, while there is."""
        self._handler_timeout_seconds = handler_timeout_seconds
        self._attempts_max = attempts_max
        self._connection = connection
        self._wait_seconds = wait_seconds
        self._next = connection.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{durable}")
        self._pulls = PullSubscription(connection, self._next, give_back=self._give_back)
        self._turn = asyncio.Lock()
        self._delivered: int | None = None
        """The consumer's deliveries at the last look, if nothing was fetched since."""

    @property
    def ack_wait_seconds(self) -> float:
        """The server's limit; before ``start`` its default."""
        return self.info.ack_wait_seconds if self.info else 30.0

    @property
    def max_ack_pending(self) -> int:
        """The server's limit, a very large number if there is none; before ``start`` its default."""
        most = self.info.max_ack_pending if self.info else 1000
        return most if most > 0 else _NO_LIMIT

    @property
    def subjects(self) -> tuple[str, ...]:
        """The consumer's filters; ``>`` if it has none."""
        return (self.info.filters if self.info else ()) or (">",)

    async def start(self) -> None:
        """Verify that the consumer exists, fits (else ContractError), and is as the settings need it."""
        self.is_known = False
        self._judge(await consumer_info(self._connection, self.stream, self.name))

    async def look(self) -> ConsumerInfo:
        """Return the consumer's state; if it does not fit any more, the next fetch raises the reason."""
        info = await consumer_info(self._connection, self.stream, self.name)
        with contextlib.suppress(ContractError):
            self._judge(info)
        return info

    def _judge(self, info: ConsumerInfo) -> None:
        """Note the consumer's limits; while it does not fit, each fetch looks again and raises the reason."""
        self.is_known = False
        if info.unfit:
            raise ContractError(
                f"{self._label} is unfit ({info.unfit}): it must be a pull consumer without priority groups, "
                f"with explicit acknowledgement, bodies and no max_expires below {PULL_SECONDS_MIN:g} s; "
                f"delete it with `nats consumer rm {self.stream} {self.name}` and run {STREAMS_APPLY}"
            )
        if self._handler_timeout_seconds >= info.ack_wait_seconds:
            limit = f"{info.ack_wait_seconds:g}, ack_wait of {self._label}"
            raise LimitsError(f"SEA_MQ_HANDLER_TIMEOUT_SECONDS: must be below {limit}")
        if 0 < info.max_deliver <= self._attempts_max:
            limit = f"{info.max_deliver}, max_deliver of {self._label}"
            raise LimitsError(f"SEA_MQ_INBOX_ATTEMPTS_MAX: must be below {limit}")
        self.info, self.is_known = info, True

    async def fetch(self, batch: int, *, bytes_max: int | None = None) -> Sequence[InboundMessage]:
        """Wait for messages and return those available; none after ``wait_seconds``."""
        async with self._turn:
            self._delivered = None
            if not self._connection.is_connected:
                raise BrokerUnavailableError(f"{self._label}: the connection is down")
            self._connection.check_replies_allowed()
            if not self.is_known:
                await self.start()
            wait_seconds = self._wait_seconds
            if info := self.info:  # with the limits of its pull requests, 0 for none
                batch = min(batch, info.max_batch or batch)
                if info.max_bytes:
                    bytes_max = info.max_bytes if bytes_max is None else min(info.max_bytes, bytes_max)
                wait_seconds = min(wait_seconds, info.max_expires_seconds or wait_seconds)
            try:
                pulled = await self._pulls.fetch(batch, bytes_max=bytes_max, wait_seconds=wait_seconds)
            except nats.errors.Error as error:
                raise BrokerUnavailableError(
                    f"{self._label}: the pull request failed ({plain(error)})"
                ) from error
        if not pulled.messages:
            await self._raise_reason(pulled)
        return [_delivery(msg) for msg in pulled.messages]

    async def is_shared(self) -> bool:
        """Look for open pull requests and deliveries that are not this worker's."""
        info = await consumer_info(self._connection, self.stream, self.name)
        own = self._pulls.request is not None  # it can have deliveries
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
        """Compare with the server's sequences, and read back what it will not deliver.

        The server does not report which messages await an acknowledgement. It reports their number, the last
        delivered sequence, and the floor up to which every message is acknowledged.
        """
        info = await consumer_info(self._connection, self.stream, self.name)
        found: dict[int, InboundMessage | None] = {}
        for seq in seqs:
            if size_of(found.values()) >= READ_BYTES_MAX:
                break
            if info.ack_pending and info.ack_floor < seq <= info.delivered_seq:
                continue
            message = await read_back(self._connection, self.stream, self.name, seq)
            if message is None or seq <= info.delivered_seq or not info.pending:
                found[seq] = message
        return found

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        """Read the stream itself while the consumer has reached max_ack_pending."""
        info = await consumer_info(self._connection, self.stream, self.name)
        is_full = 0 < info.max_ack_pending <= info.ack_pending
        if not is_full or info.is_paused:
            return None
        if not info.pending:
            return []
        return await read_on(self._connection, info, max(after_seq, info.delivered_seq), limit)

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


def _delivery(msg: Msg) -> InboundMessage:
    """Decode a delivery."""
    stream, consumer, deliveries, seq, _, nanoseconds, _ = ack_tokens(msg.reply)
    return InboundMessage(
        stream=stream,
        seq=int(seq),
        consumer=consumer,
        subject=msg.subject,
        payload=msg.data,
        headers=msg.headers or {},
        stored_at=_EPOCH + timedelta(microseconds=int(nanoseconds) // 1000),
        deliveries=int(deliveries),
        reply=msg.reply,
    )
