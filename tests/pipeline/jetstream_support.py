"""A stream of a test's own, and what reads it: in Spark, or as Spark's Python workers do."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.pipeline.jetstream.source import JetStreamOptions, JetStreamReader
from tests.support.jetstream import create_stream, store
from tests.support.pipeline_settings import write_toml
from tests.support.waiting import eventually

_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Published:
    """A message as it was given to the server."""

    subject: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that takes ``{name}.>``."""

    connection: NatsConnection
    name: str

    async def create(self, **config: Any) -> None:
        await create_stream(self.connection, self.name, f"{self.name}.>", **{"allow_direct": True, **config})

    async def store(self, count: int, *, body: bytes = b"x", subject: str = "a", **headers: str) -> None:
        for _ in range(count):
            await store(self.connection, f"{self.name}.{subject}", body, headers or None)

    async def publish(self, messages: Iterable[Published]) -> None:
        """Store messages in their order, without waiting for each."""
        given, client = list(messages), self.connection.client
        expected = await self.last_seq()
        # The server drops what is published faster than it can store.
        for start in range(0, len(given), _AT_ONCE):
            part = given[start : start + _AT_ONCE]
            for message in part:
                await client.publish(message.subject, message.body, headers=dict(message.headers))
            await client.flush()
            expected += len(part)
            await eventually(partial(self._ends_at, expected))

    async def store_raw(self, headers: bytes, body: bytes, *, subject: str = "a") -> None:
        """Store a message that nats-py would not write like this."""
        size = len(headers) + len(body)
        control = f"HPUB {self.name}.{subject} {len(headers)} {size}\r\n".encode()
        await self.connection.client._send_command(control + headers + body + b"\r\n")
        await self.connection.client.flush()

    async def delete(self, *seqs: int) -> None:
        for seq in seqs:
            await api(self.connection, f"STREAM.MSG.DELETE.{self.name}", {"seq": seq})

    async def purge(self, **which: int) -> None:
        """Remove all messages, or those before ``seq``."""
        await api(self.connection, f"STREAM.PURGE.{self.name}", which)

    async def drop(self) -> None:
        await api(self.connection, f"STREAM.DELETE.{self.name}")

    async def info(self) -> dict[str, Any]:
        return await api(self.connection, f"STREAM.INFO.{self.name}")

    async def last_seq(self) -> int:
        return int((await self.info())["state"]["last_seq"])

    async def _ends_at(self, seq: int) -> bool:
        return await self.last_seq() == seq


PASSWORD = "sesame"
"""Stands in the settings that Spark's workers read; the tests' own server asks for none."""


def settings_file(folder: Path, url: str) -> str:
    """Write the settings that Spark's Python workers read, with a password in them."""
    return str(write_toml(folder / "settings.toml", nats_url=url.replace("//", f"//spark:{PASSWORD}@")))


async def plan(stream: str, **options: Any) -> tuple[JetStreamReader, Sequence[InputPartition]]:
    """Plan a read as Spark does on the driver, by the settings of this process."""
    given = {"stream": stream} | {name: str(value) for name, value in options.items()}
    reader = JetStreamReader(JetStreamOptions.of(given))
    return reader, await asyncio.to_thread(reader.partitions)


async def rows_of(reader: Any, ranges: Sequence[InputPartition]) -> list[dict[str, Any]]:
    """Read as Spark does on its executors."""

    def read() -> list[dict[str, Any]]:
        return [row for part in ranges for batch in reader.read(part) for row in batch.to_pylist()]

    return await asyncio.to_thread(read)


async def read_rows(stream: str, **options: Any) -> list[dict[str, Any]]:
    return await rows_of(*await plan(stream, **options))


async def read_seqs(stream: str, **options: Any) -> list[int]:
    """Plan and read; return the sequences in the order in which they came."""
    return [row["seq"] for row in await read_rows(stream, **options)]
