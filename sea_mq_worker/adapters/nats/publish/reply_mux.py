"""Routes the replies of all publishes through one wildcard subscription."""

import asyncio
import itertools
from typing import Protocol

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import NatsConnection


class PendingRequest(Protocol):
    """A sent request that waits for replies.

    Attributes:
        stopped: why the request no longer waits for replies; empty while it does.
    """

    stopped: str

    def on_reply(self, token: str, msg: Msg) -> None:
        """Handle a reply; ``token`` is the part of its subject after the request's prefix."""
        ...

    def stop(self, reason: str) -> None:
        """Stop waiting: no more replies will come."""
        ...

    def deny(self, subject: str) -> None:
        """Handle a permission error for a subject (in lower case); the server will not reply for it."""
        ...


def stop_at(deadline: float, request: PendingRequest, reason: str) -> asyncio.TimerHandle:
    """Stop a request at a deadline in the loop's time, at once if it has passed."""
    loop = asyncio.get_running_loop()
    if deadline <= loop.time():
        request.stop(reason)
    return loop.call_at(deadline, request.stop, reason)


class ReplyMux:
    """Passes each reply to its request; a reply to a request that has ended is dropped."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._open: dict[str, PendingRequest] = {}
        self._numbers = itertools.count(1)
        self._inbox = ""
        self._skip = 0

    async def start(self) -> None:
        """Subscribe once; nats-py subscribes again after each reconnect."""
        self._inbox = self._connection.client.new_inbox()
        self._skip = len(self._inbox) + 1
        self._connection.listen(self._on_event)
        await self._connection.client.subscribe(f"{self._inbox}.>", cb=self._on_reply, pending_bytes_limit=0)

    def open(self, request: PendingRequest) -> str:
        """Begin a request; return the prefix of its reply subjects."""
        number = str(next(self._numbers))
        self._open[number] = request
        return f"{self._inbox}.{number}."

    def close(self, prefix: str) -> None:
        """End a request."""
        self._open.pop(prefix[self._skip : -1], None)

    async def _on_reply(self, msg: Msg) -> None:
        number, _, token = msg.subject[self._skip :].partition(".")
        request = self._open.get(number)
        if request is not None:
            request.on_reply(token, msg)

    def _on_event(self, event: str, text: str) -> None:
        for request in list(self._open.values()):
            if event in {"disconnected", "connection_closed"}:
                request.stop(f"the connection broke: {text}")
            elif event == "denied":
                request.deny(text)
