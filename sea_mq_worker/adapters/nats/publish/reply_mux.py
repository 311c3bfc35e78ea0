"""One wildcard subscription for the answers to everything that is published."""

import asyncio
import itertools
from typing import Protocol

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import NatsConnection


class PendingRequest(Protocol):
    """Something that was sent and waits for answers.

    Attributes:
        stopped: why no more answers are waited for; empty while they are.
    """

    stopped: str

    def answered(self, token: str, msg: Msg) -> None:
        """Take an answer; ``token`` is what the reply subject had behind the exchange's own prefix."""
        ...

    def stop(self, reason: str) -> None:
        """No more answers will come."""
        ...

    def deny(self, subject: str) -> None:
        """The server has forbidden a subject (in lower case) and will not answer for it."""
        ...


def stop_at(deadline: float, exchange: PendingRequest, reason: str) -> asyncio.TimerHandle:
    """Stop an exchange at a deadline in the loop's time, at once if it has passed."""
    loop = asyncio.get_running_loop()
    if deadline <= loop.time():
        exchange.stop(reason)
    return loop.call_at(deadline, exchange.stop, reason)


class ReplyMux:
    """Hands each answer to the exchange it belongs to; what comes late belongs to nobody and is dropped."""

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

    def open(self, exchange: PendingRequest) -> str:
        """Begin an exchange; return the prefix of its reply subjects."""
        number = str(next(self._numbers))
        self._open[number] = exchange
        return f"{self._inbox}.{number}."

    def close(self, prefix: str) -> None:
        """End an exchange."""
        self._open.pop(prefix[self._skip : -1], None)

    async def _on_reply(self, msg: Msg) -> None:
        number, _, token = msg.subject[self._skip :].partition(".")
        exchange = self._open.get(number)
        if exchange is not None:
            exchange.answered(token, msg)

    def _on_event(self, event: str, text: str) -> None:
        for exchange in list(self._open.values()):
            if event in {"disconnected", "connection_closed"}:
                exchange.stop(f"the connection broke: {text}")
            elif event == "denied":
                exchange.deny(text)
