"""Pull requests on nats-py's public API, over one subscription that lasts as long as the consumer.

The server gives messages to a request until it is full, has expired, or has brought all there are. It
cannot take a request back. A subscription that ends early loses the messages on their way: across accounts
the server does not notice, and delivers them again only after ack_wait. So a request outlives the fetch
that made it, the next fetch takes what it still brings, and the subscription ends when nothing comes.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import NatsConnection

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
    """Pulls messages of one durable consumer.

    Args:
        give_back: called with messages that no fetch takes, and with the delay of their redelivery.
    """

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
        self._request: _Request | None = None
        self._held: list[Msg] = []
        self._returning: asyncio.Task[None] | None = None
        self._is_busy = True
        self._silences = 0
        self._active_at = 0.0
        self._count = 0
        connection.listen(self._on_event)

    @property
    def has_request(self) -> bool:
        """Whether the server holds a request."""
        return self._request is not None

    async def fetch(self, batch: int, *, bytes_max: int | None = None, wait_seconds: float) -> PullResult:
        """Take messages of the request under way, or of a new one; wait for at most a second beyond its end.

        The messages have at most a few MB in all, and at most ``bytes_max``; a single one may be larger.
        """
        at_once = max(_BYTES_MAX, 2 * self._connection.client.max_payload)
        limit = at_once if bytes_max is None else max(1, min(at_once, bytes_max))  # 0 would mean no limit
        goes_on = self._request is not None
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
        while self._connection.is_connected and (request := self._request):
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
            if self._request is None and not pulled.messages:
                await self._send(batch, wait_seconds, options)
            if self._request is None:
                pulled.end(PullEnd.DONE)
            else:
                lost_at = self._request.expires_at + _ANSWER_SECONDS
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
        self._request = _Request(
            token=str(self._count),
            batch=batch,
            left=batch,
            expires_at=self._active_at + seconds,
            over=loop.create_future(),
        )
        request = {"batch": batch, "expires": int(seconds * _NANOSECONDS), "no_wait": True, **options}
        reply = f"{self._inbox}.{self._request.token}"
        await client.publish(self._subject, json.dumps(request).encode(), reply=reply)

    def _end_request(self) -> None:
        """Forget the request: the server has ended it, or does not have it."""
        if self._request is not None:
            self._request.over.set_result(None)
            self._request = None

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
        if self._request is not None:
            self._request.left -= 1
            if not self._request.left:
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
        request = self._request
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
        rest = self._request.expires_at - asyncio.get_running_loop().time() if self._request else 0.0
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
