"""The broker's floor: frames that were encoded beforehand, written to a bare socket."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self
from urllib.parse import urlsplit

from sea_mq_worker.nats.headers import EncodedMessage, encode
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.jetstream import frame

_INBOX = "_INBOX.floor"
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
_WINDOW = 4_000
_CHUNK = 100
_FLOW = 1_000
_START, _APPEND, _COMMIT = 0, 1, 2
_READ_BYTES = 1 << 18
_PAYLOAD_MAX = 1 << 20


def frames_to_acknowledge(messages: Sequence[OutboundMessage]) -> list[bytes]:
    """Encode messages that the stream acknowledges one by one."""
    return [frame(ready, _INBOX) for ready in map(_ready, messages)]


def frames_of_a_batch(messages: Sequence[OutboundMessage]) -> list[bytes]:
    """Encode messages as one fast-ingest batch, which the stream acknowledges in strides."""
    operations = [_START, *[_APPEND] * (len(messages) - 2), _COMMIT]
    return [
        frame(_ready(message), f"{_INBOX}.floor.{_FLOW}.fail.{number}.{operation}.$FI")
        for number, (message, operation) in enumerate(zip(messages, operations, strict=True), start=1)
    ]


def _ready(message: OutboundMessage) -> EncodedMessage:
    ready = encode(message, _PAYLOAD_MAX)
    if isinstance(ready, str):
        raise TypeError(ready)
    return ready


async def publish_acknowledged(url: str, frames: Sequence[bytes]) -> None:
    """Publish, with an acknowledgement of each message and a window of those that are still to come."""
    async with _Line(url) as line:
        acknowledged = sent = 0
        while acknowledged < len(frames):
            while sent < len(frames) and sent - acknowledged + _CHUNK <= _WINDOW:
                await line.write(frames[sent : sent + _CHUNK])
                sent = min(sent + _CHUNK, len(frames))
            acknowledged += await line.read(lambda text: text.count(b'"stream":'))


async def publish_batch(url: str, frames: Sequence[bytes]) -> None:
    """Publish one fast-ingest batch, never further ahead than two of the server's strides."""
    async with _Line(url) as line:
        await line.write(frames[:1])
        sent, acknowledged, finals = 1, await line.read(_last_acknowledged), 0
        while sent < len(frames):
            end = min(acknowledged + 2 * _FLOW, len(frames))
            await line.write(frames[sent:end])
            sent = max(sent, end)
            if sent < len(frames):
                acknowledged = max(acknowledged, await line.read(_last_acknowledged))
        while not finals:
            finals += await line.read(lambda text: text.count(b'"batch":'))


def _last_acknowledged(text: bytes) -> int:
    _, found, rest = text.rpartition(b'"type":"ack","seq":')
    return int(rest.partition(b",")[0]) if found else 0


class _Line:
    """A connection that reads whole protocol lines and answers pings."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._rest = b""

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            self._address.hostname, self._address.port, limit=_READ_BYTES
        )
        await self._reader.readline()
        await self.write([_CONNECT, f"SUB {_INBOX} 1\r\nSUB {_INBOX}.> 2\r\n".encode()])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def write(self, frames: Sequence[bytes]) -> None:
        self._writer.write(b"".join(frames))
        await self._writer.drain()

    async def read(self, find: Callable[[bytes], int]) -> int:
        """Wait for whole lines and return the pattern's matches in them."""
        data = await self._reader.read(_READ_BYTES)
        text, end, self._rest = (self._rest + data).rpartition(b"\r\n")
        if not data or b'"error":' in text or b"-ERR" in text:
            raise RuntimeError(f"the server refused: {text[-300:].decode(errors='replace')}")
        if b"PING" + end in text + end:
            await self.write([b"PONG\r\n"])
        return find(text)
