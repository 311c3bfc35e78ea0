"""``spark.read.format("jetstream")``: every message of a stream once, or an error."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from tests.support.jetstream import connected, create_stream, store

Read: TypeAlias = Callable[..., DataFrame]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of the test's own."""

    connection: NatsConnection
    name: str

    async def store(self, *bodies: bytes, subject: str = "a", **headers: str) -> None:
        for body in bodies:
            await store(self.connection, f"{self.name}.{subject}", body, headers or None)

    async def delete(self, *seqs: int) -> None:
        for seq in seqs:
            await api(self.connection, f"STREAM.MSG.DELETE.{self.name}", {"seq": seq})


@pytest_asyncio.fixture
async def stream(nats_url: str, names: str) -> AsyncIterator[Stream]:
    async with connected(nats_url) as connection:
        await create_stream(connection, names, f"{names}.>", allow_direct=True)
        yield Stream(connection, names)


@pytest.fixture
def read(spark: SparkSession, nats_url: str, names: str, tmp_path: Path) -> Read:
    config = tmp_path / "settings.toml"
    config.write_text(f'nats_url = "{nats_url}"\n')

    def load(**options: Any) -> DataFrame:
        given = {"stream": names, "config": str(config), **options}
        return spark.read.format("jetstream").options(**given).load()

    return load


def seqs(frame: DataFrame) -> Sequence[int]:
    return [row.seq for row in frame.select("seq").collect()]


async def test_a_row_tells_all_of_a_message(stream: Stream, read: Read) -> None:
    lines = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nTag: a\r\nTag:b: c \r\nEmpty:\r\nWort: \xc3\xb6\r\n\r\n"
    body = b"\x00\xff\r\nMSG"
    subject = f"{stream.name}.x"
    size = len(lines) + len(body)
    raw = f"HPUB {subject} {len(lines)} {size}\r\n".encode() + lines + body + b"\r\n"
    await stream.connection.client._send_command(raw)
    await stream.store(b"")

    told = await api(stream.connection, f"STREAM.INFO.{stream.name}")
    first, second = read().collect()

    assert (first.stream, first.created, first.seq, first.subject) == (
        stream.name,
        told["created"],
        1,
        subject,
    )
    assert first.data == body
    assert [tuple(pair) for pair in first.headers] == [
        ("Nats-Msg-Id", "7"),
        ("Tag", "a"),
        ("Tag", "b: c"),
        ("Empty", ""),
        ("Wort", "ö"),
    ]
    assert (second.headers, second.data) == ([], b"")


async def test_partitions_are_read_side_by_side_and_miss_nothing(stream: Stream, read: Read) -> None:
    await stream.store(*[b"x"] * 25)
    frame = read(rowsPerPartition=10)
    assert frame.rdd.getNumPartitions() == 3
    assert seqs(frame) == list(range(1, 26))
    assert seqs(read(startSeq=11, endSeq=20)) == list(range(11, 21))


async def test_an_empty_stream_has_no_rows(stream: Stream, read: Read) -> None:
    assert read().isEmpty()
    await stream.store(b"x")
    await api(stream.connection, f"STREAM.PURGE.{stream.name}")
    assert read().isEmpty()
    assert read(startSeq=2).isEmpty()
