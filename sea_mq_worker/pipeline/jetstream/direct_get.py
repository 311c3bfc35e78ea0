"""Batched direct gets that return raw frames, without nats-py's message objects.

nats-py makes an object of each message and a mapping of its headers: that loses repeated names, and costs
more than the rest of a read. The method that receives a frame is not in nats-py's public API; the pinned
version guards it.
"""

import asyncio
import json
from typing import Any, Self

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.pipeline.jetstream.columns import ADDED, Frame

_SILENT_SECONDS_MAX = 10.0
_STATUS_AT = len(b"NATS/1.0")
_END = b"204"
_NONE = b"404"
_TOO_MANY = b"429"


class DirectGet:
    """Batched direct gets from one stream over one connection, one at a time."""

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection = connection
        self._subject = connection.api_subject(f"DIRECT.GET.{stream}")
        self._inbox = connection.client.new_inbox()
        self._number = 0
        self._reply = b""
        self._frames: list[Frame] = []
        self._ended: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, connection: NatsConnection, stream: str) -> Self:
        """Subscribe to the responses; the subscription ends with the connection."""
        direct = cls(connection, stream)
        own = await connection.client.subscribe(f"{direct._inbox}.*")
        stock = connection.client._process_msg  # noqa: SLF001
        own_id = own._id  # noqa: SLF001

        async def process(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            if sid == own_id:
                direct._receive(subject, headers, data)
            else:
                await stock(sid, subject, reply, data, headers)

        connection.client._process_msg = process  # type: ignore[method-assign]  # noqa: SLF001
        connection.listen(direct._on_event)
        return direct

    async def fetch(self, request: dict[str, Any]) -> list[Frame]:
        """Return the messages of the response, in the stream's order; empty if nothing matches.

        Raises:
            BrokerUnavailableError: no response, or an incomplete one.
            ContractError: the permission is missing, or the server refuses the request.
        """
        self._frames = []
        self._number += 1
        reply = f"{self._inbox}.{self._number}"
        self._reply = reply.encode()
        self._ended = asyncio.get_running_loop().create_future()
        if not self._connection.is_connected:
            raise BrokerUnavailableError(f"{self._subject}: the connection is down")
        await self._connection.client.publish(self._subject, json.dumps(request).encode(), reply)
        self._judge(await self._end(self._ended))
        return self._frames

    async def _end(self, ended: asyncio.Future[bytes]) -> bytes:
        while True:
            before = len(self._frames)
            await asyncio.wait({ended}, timeout=_SILENT_SECONDS_MAX)
            if ended.done():
                return ended.result()
            if len(self._frames) == before:
                raise BrokerUnavailableError(f"{self._subject}: the response stopped before its end")

    def _judge(self, end: bytes) -> None:
        """Raise an error unless the response has ended; a message that it lacks is a gap for the leader."""
        status = end[_STATUS_AT + 1 : _STATUS_AT + 4]
        if status in {_END, _NONE}:
            return
        text = end.partition(b"\r\n")[0].decode(errors="replace")
        if status.startswith(b"4") and status != _TOO_MANY:
            raise ContractError(f"{self._subject}: the server refuses the request: {text}")
        raise BrokerUnavailableError(f"{self._subject}: the response is incomplete: {text}")

    def _receive(self, subject: bytes, headers: bytes, data: bytes) -> None:
        if subject != self._reply or self._ended is None:
            return
        if headers[_STATUS_AT : _STATUS_AT + 1] == b" " and ADDED not in headers:
            if not self._ended.done():
                self._ended.set_result(headers)
        else:
            self._frames.append((headers, data))

    def _on_event(self, event: str, text: str) -> None:
        if self._ended is None or self._ended.done():
            return
        if event == "disconnected":
            self._ended.set_exception(BrokerUnavailableError(f"the connection was lost: {text}"))
        elif event == "denied" and text == self._subject.lower():
            self._ended.set_exception(
                ContractError(f"the worker has no permission to publish to {self._subject}; grant it")
            )
