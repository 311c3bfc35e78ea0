"""A stream of events on a real server, and the lake that it is landed in."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.pipeline.jobs.land.job import LandOptions, LandProgress, LandResult, count, land
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD, SILVER, TableSchema
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.settings import Settings, load_settings
from tests.support.waiting import eventually

_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Published:
    """A message as it was given to the server."""

    subject: str
    headers: Mapping[str, str]
    body: bytes


def event(context: str, number: int, **headers: str) -> Published:
    """Return an event as the worker sends it, of one of three types."""
    kind = ("order.paid", "order.sent", "user.made")[number % 3]
    own = {
        "Nats-Msg-Id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{context}{number}")),
        "ce-id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{context}{number}")),
        "ce-source": f"/{context}",
        "ce-type": kind,
        "ce-time": "2026-01-02T03:04:05.678901Z",
        "ce-subject": f"order/{number}",
        "ce-eventversion": "1",
    }
    body = json.dumps({"number": number, "text": "ü" * 30}, ensure_ascii=False).encode()
    return Published(f"{context}.event.{kind}.v1", own | headers, body)


def copy_of(message: Published) -> Published:
    """Return it with the same id, which the server takes for another since it reads Nats-Msg-Id alone."""
    return Published(
        message.subject, {k: v for k, v in message.headers.items() if k != "Nats-Msg-Id"}, message.body
    )


async def publish(connection: NatsConnection, stream: str, messages: Iterable[Published]) -> None:
    """Store messages in their order, without waiting for each."""
    given = list(messages)
    expected = await last_seq(connection, stream)
    # The server drops what is published faster than it can store.
    for start in range(0, len(given), _AT_ONCE):
        part = given[start : start + _AT_ONCE]
        for message in part:
            await connection.client.publish(message.subject, message.body, headers=dict(message.headers))
        await connection.client.flush()
        expected += len(part)
        await eventually(partial(_stored, connection, stream, expected))


async def _stored(connection: NatsConnection, stream: str, expected: int) -> bool:
    return await last_seq(connection, stream) == expected


async def last_seq(connection: NatsConnection, stream: str) -> int:
    """Ask for the last sequence given."""
    return int((await api(connection, f"STREAM.INFO.{stream}"))["state"]["last_seq"])


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake, and how to land in it."""

    folder: Path
    settings: Settings
    spark: SparkSession | None = None

    async def land(
        self, *streams: str, on_progress: Callable[[LandProgress], None] | None = None, **options: Any
    ) -> LandResult:
        """Land once, with the options of LandOptions, in a thread: the job has event loops of its own."""
        return await asyncio.to_thread(
            land,
            self.spark,
            self.settings,
            lake=str(self.folder),
            streams=streams,
            options=LandOptions(**options),
            on_progress=on_progress or (lambda _progress: None),
        )

    async def left(self, stream: str) -> int:
        """Return how many messages a run would land."""
        found = await asyncio.to_thread(count, self.settings, lake=str(self.folder), streams=[stream])
        return found.streams[0].left

    def table(self, table_schema: TableSchema) -> LakeTable:
        """Return one of its tables."""
        return LakeTable(str(self.folder), table_schema)

    def rows(self, table_schema: TableSchema) -> list[dict[str, Any]]:
        """Read all of a table, by a reader that is not Spark."""
        table = self.table(table_schema).open()
        found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist() if table else []
        return found

    def count(self, table_schema: TableSchema) -> int:
        """Count a table's rows."""
        table = self.table(table_schema).open()
        return table.count() if table else 0

    def versions(self) -> list[int]:
        """Return how often each table was committed to."""
        opened = [self.table(table_schema).open() for table_schema in (BRONZE, SILVER, GOLD)]
        return [table.version() for table in opened if table]


def descriptions(spark: SparkSession) -> list[str]:
    """Return the descriptions of all jobs as Scala shows an option, the latest first."""
    assert spark._jvm
    jobs = spark._jsc.sc().statusStore().jobsList(None)
    return [jobs.apply(number).description().toString() for number in range(jobs.size())]


def settings_file(path: Path, url: str) -> Path:
    """Write the settings that driver and tasks read."""
    path.write_text(f'nats_url = "{url}"\nconsumers = ""\n')
    return path


def lake_at(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake in a folder, whose jobs reach the server at ``url``."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("SEA_MQ_CONFIG", str(settings_file(folder / "settings.toml", url)))
    return Lake(folder, load_settings(needs=("nats_url",)))
