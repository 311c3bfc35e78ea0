"""The handler's floor: a load generator that writes requests which were encoded beforehand."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import cast
from urllib.parse import urlsplit

from sea_mq_worker.inbox.http import request_body
from sea_mq_worker.inbox.message import HandlerRequest
from sea_mq_worker.nats.message import OutboundMessage

_OK = b"HTTP/1.1 200 "
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def encode_requests(url: str, messages: Sequence[OutboundMessage]) -> list[bytes]:
    """Encode the requests that the worker would make of the messages."""
    to = urlsplit(url)
    head = f"POST {to.path} HTTP/1.1\r\nhost: {to.netloc}\r\ncontent-type: application/json\r\n".encode()
    bodies = [_body(message) for message in messages]
    return [b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body) for body in bodies]


def _body(message: OutboundMessage) -> bytes:
    parts = request_body(
        HandlerRequest(
            message_id=message.id,
            subject=message.subject,
            event_type="vibe_created",
            event_version=1,
            occurred_at="2025-01-01T00:00:00Z",
            correlation_id=None,
            causation_id=None,
            payload=message.payload,
        )
    )
    return b"".join(parts)


async def ask(url: str, requests: Sequence[bytes], *, concurrency: int) -> None:
    """Send all requests over ``concurrency`` connections, each request after the response to the last."""
    to, loop = urlsplit(url), asyncio.get_running_loop()
    waiting = iter(requests)
    callers = [_Caller(waiting, loop.create_future()) for _ in range(concurrency)]
    async with asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(_call(caller, to.hostname or "", to.port or 80))


async def _call(caller: "_Caller", host: str, port: int) -> None:
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: caller, host, port)
    try:
        await caller.done
    finally:
        transport.close()


class _Caller(asyncio.Protocol):
    """One connection; each response must be a 200 with a content-length."""

    def __init__(self, waiting: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self.done = done
        self._waiting = waiting
        self._transport: asyncio.Transport
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(_HEAD_END)
        if not end:
            return
        length = _LENGTH.search(head)
        if not head.startswith(_OK) or length is None:
            self._end(RuntimeError(f"the handler answered {head[:100]!r}"))
        elif len(body) >= int(length[1]):
            self._answer = b""
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the handler closed the connection"))

    def _send(self) -> None:
        request = next(self._waiting, None)
        if request is None:
            self._end(None)
        else:
            self._transport.write(request)

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)
