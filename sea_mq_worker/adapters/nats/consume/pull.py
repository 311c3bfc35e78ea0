"""Own pull requests on nats-py's public API: one at a time, and none outlives its call.

The server is asked to wait for the first message, to hand out with it what is there, and to say that this
was all. So nothing is ever handed out that nobody is waiting for, and a lost request costs one bounded wait.
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
"""How long messages may take that are on their way when a request is cut short."""
_BYTES_MAX = 4 * 1024 * 1024
"""Asked for at once: a slow network takes it before the server gives the connection up as a slow consumer."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_SOCKET_CLOSED = (OSError, RuntimeError)
"""What a write to a socket raises that broke a moment ago; uvloop has a RuntimeError for it."""
_SETTLED_SECONDS = 0.02
_ANSWER_SECONDS = 1.0
_NANOSECONDS = 10**9
_HEARTBEAT = "100"


class PullEnd(Enum):
    """How a pull request ended."""

    DONE = auto()
    """As asked: full, or the server says that this was all."""
    CUT = auto()
    """Messages came and then nothing, not even the end: max_ack_pending is reached."""
    SILENCE = auto()
    """Neither a message nor a status; the request is lost."""
    DISCONNECTED = auto()
    DENIED = auto()
    REFUSED = auto()
    """The server answered with another status, see ``PullResult.status``."""


@dataclass(slots=True)
class PullResult:
    """One request, and what it has brought so far."""

    batch: int
    token: str
    ended: asyncio.Future[PullEnd]
    messages: list[Msg] = field(default_factory=list)
    status: str = ""

    def end(self, how: PullEnd) -> None:
        """Note the end; the first one counts."""
        if not self.ended.done():
            self.ended.set_result(how)


class PullSubscription:
    """Asks one durable consumer for messages.

    Args:
        on_unexpected: takes a message that came when nobody was waiting for it.
    """

    def __init__(
        self, connection: NatsConnection, subject: str, *, on_unexpected: Callable[[Msg], Awaitable[None]]
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._on_unexpected = on_unexpected
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._pulled: PullResult | None = None
        self._count = 0
        connection.listen(self._on_event)

    async def ask(self, batch: int, *, bytes_max: int | None = None, wait_seconds: float) -> PullResult:
        """Make one request and wait for its end, a little longer than ``wait_seconds`` at most.

        Not more than a few MB come, and not more than ``bytes_max``, but a single message of any size.
        """
        at_once = max(_BYTES_MAX, 2 * self._connection.client.max_payload)
        limit = at_once if bytes_max is None else min(at_once, bytes_max)
        pulled = await self._ask(batch, wait_seconds, {"max_bytes": limit})
        if pulled.messages or _TOO_LARGE not in pulled.status:
            return pulled
        return await self._ask(1, wait_seconds, {})

    async def _ask(self, batch: int, wait_seconds: float, limits: Mapping[str, int]) -> PullResult:
        await self._subscribe()
        self._count += 1
        ended = asyncio.get_running_loop().create_future()
        pulled = self._pulled = PullResult(batch, str(self._count), ended)
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
            self._pulled = None
            deadline.cancel()
        return pulled

    async def close(self) -> None:
        """End the server's interest; what it sent before it knew still arrives."""
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
        pulled = self._pulled
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
        status = f"{headers.get('Status', '')} {headers.get('Description', '')}".strip()
        if pulled is None or msg.subject.rpartition(".")[2] != pulled.token or status.startswith(_HEARTBEAT):
            return
        if pulled.ended.done():  # the status came too late, as after a pause of this process
            return
        pulled.status = status
        finished = status.startswith(("404", "408")) or "Batch Completed" in status
        finished = finished or (_TOO_LARGE in status and bool(pulled.messages))
        pulled.end(PullEnd.DONE if finished else PullEnd.REFUSED)

    def _on_event(self, event: str, text: str) -> None:
        if self._pulled is None:
            return
        if event in {"disconnected", "connection_closed"}:
            self._pulled.end(PullEnd.DISCONNECTED)
        elif event == "denied" and text == self._subject.lower():
            self._pulled.end(PullEnd.DENIED)
