"""A scriptable, badly behaved HTTP handler on real sockets."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from sea_mq_worker.inbox.message import HandlerRequest

_WHOLE = re.compile(rb"(?:HTTP/1\.1 1\d\d[^\n]*\r\n\r\n)?HTTP/1\.1 ([2-9]\d\d) (.*?)\r\n\r\n(.*)", re.DOTALL)
_LENGTH = re.compile(rb"content-length: (\d+)")
_WAIT = re.compile(rb"retry-after: (\d+)")


def handler_request(message_id: str, **given: Any) -> HandlerRequest:
    """Make a request for a message."""
    defaults: dict[str, Any] = {
        "subject": "vibespro.event.vibe_created.v1",
        "event_type": "vibe_created",
        "event_version": 1,
        "occurred_at": "2025-12-28T22:00:00.123456Z",
        "correlation_id": None,
        "causation_id": None,
        "payload": b"{}",
    }
    return HandlerRequest(message_id=message_id, **(defaults | given))


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it came over the wire."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which connection brought it, from 1."""

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def message_id(self) -> str:
        return self.headers.get("x-message-id", "")


Behaviour: TypeAlias = Callable[[Call, asyncio.StreamWriter], Awaitable[None]]
"""Writes any bytes; the connection stays open for the next request unless the behaviour closes it."""


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer properly; header names are written with underscores."""
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw("\r\n".join([*lines, "", ""]).encode() + body)


def raw(data: bytes, *, close: bool = False, reset: bool = False) -> Behaviour:
    """Send these bytes, and close or reset the connection if asked to."""

    async def behave(_call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if reset:
            no_farewell = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_farewell)
            writer.transport.abort()
        elif close:
            await writer.drain()
            writer.close()

    return behave


async def hang(_call: Call, _writer: asyncio.StreamWriter) -> None:
    """Send no byte until the server is closed."""
    await asyncio.Event().wait()


def drip(head: bytes, drop: bytes, *, every_seconds: float = 0.02) -> Behaviour:
    """Send ``head`` and then ``drop`` again and again, so that no single read ever times out."""

    async def behave(_call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(every_seconds)

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Use one behaviour per request, in this order, and the last one for all later requests."""
    left = list(behaviours)

    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        chosen = left.pop(0) if len(left) > 1 else left[0]
        await chosen(call, writer)

    return behave


class AnswerRecorder:
    """Stands in for a stream writer, and records a behaviour's answer for one message of a batch."""

    def __init__(self) -> None:
        self.data = b""
        self.is_open = True
        self.transport = self

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """Behave like a writer that never has to wait."""

    def close(self) -> None:
        self.is_open = False

    def is_closing(self) -> bool:
        return not self.is_open

    abort = close

    def get_extra_info(self, _name: str) -> Any:
        return self

    def setsockopt(self, *_: object) -> None:
        """Behave like the socket of a writer."""

    def element(self, message_id: str) -> dict[str, object] | None:
        """Return the array's element for this answer; None where it is not a whole one."""
        found = _WHOLE.fullmatch(self.data)
        if not found or not self.is_open:
            return None
        status, head, body = found.groups()
        length, wait = _LENGTH.search(head), _WAIT.search(head)
        if length is None or int(length[1]) != len(body):
            return None
        element: dict[str, object] = {"message_id": message_id, "status": int(status)}
        return element | ({"retry_after": int(wait[1])} if wait else {})


@dataclass
class HandlerServer:
    """Listens on loopback; ``script`` (by message id) goes before ``default``."""

    default: Behaviour = field(default_factory=lambda: answer(200))
    batch: Behaviour | None = None
    """Behaviour for a batch, instead of those for its messages."""
    script: dict[str, Behaviour] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    port: int = 0
    stop_listening: Callable[[], None] = lambda: None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _called: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/handle"

    def calls_of(self) -> Counter[str]:
        """Count the calls by message id."""
        return Counter(call.message_id for call in self.calls)

    async def called(self, count: int, *, within: float = 5.0) -> None:
        """Wait until ``count`` requests have come."""
        async with asyncio.timeout(within), self._called:
            await self._called.wait_for(lambda: len(self.calls) >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        number = self.connections
        try:
            while not writer.is_closing():
                call = await _read_call(reader, number)
                async with self._called:
                    self.calls.append(call)
                    self._called.notify_all()
                await self._behave(call, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            writer.close()

    async def _behave(self, call: Call, writer: asyncio.StreamWriter) -> None:
        if not call.path.endswith("-batch"):
            await self.script.get(call.message_id, self.default)(call, writer)
        elif self.batch is not None:
            await self.batch(call, writer)
        else:
            await self._answer_batch(call, writer)

    async def _answer_batch(self, call: Call, writer: asyncio.StreamWriter) -> None:
        """Answer with all statuses; where one message gets no whole answer, the batch gets none either."""
        elements = []
        for message in json.loads(call.body):
            message_id, recorder = message["message_id"], AnswerRecorder()
            one = replace(call, headers={"x-message-id": message_id}, body=json.dumps(message).encode())
            await self.script.get(message_id, self.default)(one, cast("asyncio.StreamWriter", recorder))
            element = recorder.element(message_id)
            if element is None:
                writer.write(recorder.data)
                if recorder.is_closing():
                    writer.close()
                return
            elements.append(element)
        await answer(200, json.dumps(elements).encode())(call, writer)

    async def stop(self) -> None:
        """Cancel the open connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read_call(reader: asyncio.StreamReader, connection: int) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, path, _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, path, headers, body, connection)


@contextlib.asynccontextmanager
async def handler_server(
    default: Behaviour | None = None, *, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[HandlerServer]:
    """Run a server for one test."""
    server = HandlerServer()
    if default is not None:
        server.default = default
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    server.stop_listening = listening.close
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
