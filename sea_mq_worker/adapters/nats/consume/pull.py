"""Pull requests on nats-py's public API: one at a time, and none outlives its call.

Each request lets the server wait for the first message, deliver with it the messages available, and report
the end. So the server never delivers without a waiting call, and a lost request costs one bounded wait.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
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
_ARRIVAL_SECONDS_MAX = 10.0
"""Cap on the wait for messages in flight after a request ended early."""
_BYTES_MAX = 4 * 1024 * 1024
"""Cap on a request, so that the server does not close a slow connection as a slow consumer."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_SOCKET_CLOSED = (OSError, RuntimeError)
"""Errors of a write to a socket that has just broken; uvloop raises RuntimeError."""
_SETTLED_SECONDS = 0.02
_ANSWER_SECONDS = 1.0
_NANOSECONDS = 10**9
_HEARTBEAT = "100"


class PullEnd(Enum):
    """End of a pull request."""

    DONE = auto()
    """The batch is full, or the server reported its end."""
    CUT = auto()
    """Messages came, but no end: max_ack_pending is reached."""
    SILENCE = auto()
    """Neither a message nor a status came; the request is lost."""
    DISCONNECTED = auto()
    DENIED = auto()
    REFUSED = auto()
    """The server replied with another status; see ``PullResult.status``."""


@dataclass(slots=True)
class PullResult:
    """One request and its messages so far."""

    batch: int
    token: str
    ended: asyncio.Future[PullEnd]
    messages: list[Msg] = field(default_factory=list)
    status: str = ""

    def end(self, how: PullEnd) -> None:
        """Record the end; the first one counts."""
        if not self.ended.done():
            self.ended.set_result(how)


class PullSubscription:
    """Pulls messages of one durable consumer.

    Args:
        on_unexpected: called with a message that arrived while no call waited.
    """

    def __init__(
        self, connection: NatsConnection, subject: str, *, on_unexpected: Callable[[Msg], Awaitable[None]]
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._on_unexpected = on_unexpected
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._request: PullResult | None = None
        self._count = 0
        connection.listen(self._on_event)

    async def fetch(self, batch: int, *, bytes_max: int | None = None, wait_seconds: float) -> PullResult:
        """Make one request and wait for its end, for at most ``wait_seconds`` and one second more.

        The messages have at most a few MB in all, and at most ``bytes_max``; a single one may be larger.
        """
        at_once = max(_BYTES_MAX, 2 * self._connection.client.max_payload)
        limit = at_once if bytes_max is None else max(1, min(at_once, bytes_max))  # 0 would mean no limit
        pulled = await self._pull(batch, wait_seconds, {"max_bytes": limit})
        if pulled.messages or _TOO_LARGE not in pulled.status:
            return pulled
        return await self._pull(1, wait_seconds, {})

    async def _pull(self, batch: int, wait_seconds: float, limits: Mapping[str, int]) -> PullResult:
        await self._subscribe()
        self._count += 1
        ended = asyncio.get_running_loop().create_future()
        pulled = self._request = PullResult(batch, str(self._count), ended)
        request = {"batch": batch, "expires": int(wait_seconds * _NANOSECONDS), "no_wait": True, **limits}
        deadline = ended.get_loop().call_later(wait_seconds + _ANSWER_SECONDS, pulled.end, PullEnd.SILENCE)
        try:
            reply = f"{self._inbox}.{pulled.token}"
            await self._connection.client.publish(self._subject, json.dumps(request).encode(), reply=reply)
            if await ended in {PullEnd.CUT, PullEnd.SILENCE}:
                await self._end_interest(_ARRIVAL_SECONDS_MAX)
        except BaseException:
            await self.close()
            await asyncio.gather(*map(self._on_unexpected, pulled.messages))
            raise
        finally:
            self._request = None
            deadline.cancel()
        return pulled

    async def close(self) -> None:
        """Unsubscribe; messages that the server had already sent still arrive."""
        await self._end_interest(_DRAIN_SECONDS_MAX)

    async def _end_interest(self, seconds_max: float) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        with contextlib.suppress(nats.errors.Error, TimeoutError, *_SOCKET_CLOSED):
            if self._connection.is_connected:
                drained = subscription.drain()  # type: ignore[no-untyped-call]
                await asyncio.wait_for(drained, seconds_max)
            else:
                await subscription.unsubscribe()

    async def _subscribe(self) -> None:
        if self._subscription is None:
            client = self._connection.client
            self._inbox = client.new_inbox()
            self._subscription = await client.subscribe(
                f"{self._inbox}.*", cb=self._on_message, pending_bytes_limit=0
            )

    async def _on_message(self, msg: Msg) -> None:
        pulled = self._request
        if not msg.reply:
            self._on_status(msg, pulled)
        elif not msg.reply.startswith(_ACKS):
            return
        elif pulled is None or len(pulled.messages) == pulled.batch:
            await self._on_unexpected(msg)
        else:
            pulled.messages.append(msg)
            if len(pulled.messages) == pulled.batch:
                pulled.end(PullEnd.DONE)
            elif len(pulled.messages) == 1:
                pulled.ended.get_loop().call_later(_SETTLED_SECONDS, pulled.end, PullEnd.CUT)

    def _on_status(self, msg: Msg, pulled: PullResult | None) -> None:
        headers = msg.headers or {}
        description = headers.get("Description", "").partition("\n")[
            0
        ]  # nats-py adds a header to an empty one
        status = f"{headers.get('Status', '')} {description}".strip()
        if pulled is None or msg.subject.rpartition(".")[2] != pulled.token or status.startswith(_HEARTBEAT):
            return
        if pulled.ended.done():  # the status came too late, as after a pause of this process
            return
        pulled.status = status
        finished = status.startswith(("404", "408")) or "Batch Completed" in status
        finished = finished or (_TOO_LARGE in status and bool(pulled.messages))
        pulled.end(PullEnd.DONE if finished else PullEnd.REFUSED)

    def _on_event(self, event: str, text: str) -> None:
        if self._request is None:
            return
        if event == "disconnected":
            self._request.end(PullEnd.DISCONNECTED)
        elif event == "denied" and self._connection.replies_denied:
            self._request.end(PullEnd.SILENCE)
        elif event == "denied" and text == self._subject.lower():
            self._request.end(PullEnd.DENIED)
