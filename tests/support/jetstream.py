"""Streams and consumers of a test's own on the session's server, and messages in them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.nats.connection import NatsConnection, api, connect
from sea_mq_worker.resources import resource_folder

SECOND = 10**9
DAY = 86_400 * SECOND
_ANSWER_SECONDS = 30.0

PATIENCE_SECONDS = 10.0
"""For an answer from a server that writes to a busy disk."""

_SINCE = {"allow_atomic": (2, 12), "allow_batched": (2, 14)}


@asynccontextmanager
async def connected(url: str | list[str], **given: Any) -> AsyncIterator[NatsConnection]:
    """Connect for the length of a block."""
    connection = await connect(urls=url, name="test", on_event=lambda _event, _text: None, **given)
    try:
        yield connection
    finally:
        await connection.close()


async def create_stream(connection: NatsConnection, name: str, subject: str, **config: Any) -> None:
    """Create a stream, without fields that the server is too old for."""
    version = connection.client.connected_server_version
    known = {
        field: value
        for field, value in config.items()
        if (version.major, version.minor) >= _SINCE.get(field, (0, 0))
    }
    wanted = {"name": name, "subjects": [subject], "num_replicas": 1, "storage": "file", **known}
    await api(connection, f"STREAM.CREATE.{name}", wanted)


async def create_consumer(connection: NatsConnection, stream: str, name: str, **config: Any) -> None:
    """Create a durable pull consumer with explicit acknowledgement."""
    wanted = {"durable_name": name, "name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
    request = {"stream_name": stream, "config": wanted, "action": "create"}
    await api(connection, f"CONSUMER.CREATE.{stream}.{name}", request)


async def consumer_info(connection: NatsConnection, stream: str, name: str) -> dict[str, Any]:
    """Return the server's CONSUMER.INFO."""
    return await api(connection, f"CONSUMER.INFO.{stream}.{name}")


async def store(
    connection: NatsConnection,
    subject: str,
    payload: bytes = b"{}",
    headers: dict[str, str] | None = None,
    *,
    within: float = PATIENCE_SECONDS,
) -> int:
    """Publish a message; return its stream sequence.

    Raises:
        nats.errors.Error: no answer in time, or a refusal. A cluster's refusal names a stream and sequence 0.
    """
    answer = json.loads((await connection.client.request(subject, payload, within, headers=headers)).data)
    if "error" in answer:
        raise nats.errors.Error(answer["error"]["description"])
    return int(answer["seq"])


def shipped_files(folder: Path, *, upstream: str) -> Path:
    """Copy the definitions that come with the worker, with ``upstream`` in the place of ``vibespro``.

    The server is shared by all tests; ``sea`` is renamed by ``definitions`` itself.
    """
    shipped = resource_folder("streams")
    for file in shipped.rglob("*.json"):
        copy = folder / _renamed(str(file.relative_to(shipped)), upstream)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_renamed(file.read_text(), upstream))
    return folder


def _renamed(text: str, upstream: str) -> str:
    return text.replace("vibespro", upstream).replace("VIBESPRO", upstream.upper())


class Stored(NamedTuple):
    """A message of a stream."""

    seq: int
    subject: str
    body: bytes
    headers: dict[str, str]


async def stored_messages(connection: NatsConnection, stream: str) -> list[Stored]:
    """Read a whole stream."""
    return [
        Stored(message.metadata.sequence.stream, message.subject, message.data, dict(message.headers or {}))
        for message in await read_stream(connection, stream)
    ]


async def read_stream(connection: NatsConnection, stream: str) -> list[Msg]:
    """Read a whole stream."""
    left = (await api(connection, f"STREAM.INFO.{stream}"))["state"]["messages"]
    if not left:
        return []
    inbox = connection.client.new_inbox()
    coming = await connection.client.subscribe(inbox, pending_bytes_limit=0)
    reader = {"deliver_subject": inbox, "ack_policy": "none", "inactive_threshold": SECOND}
    await api(connection, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": reader})
    messages = [await coming.next_msg(timeout=_ANSWER_SECONDS) for _ in range(left)]
    await coming.unsubscribe()
    return messages
