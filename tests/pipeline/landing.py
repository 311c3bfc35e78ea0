"""Events as the worker sends them, and the lake that they are landed in."""

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.job import LandOptions, LandResult, count, land
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD, SILVER, TableSchema
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Published
from tests.support.pipeline_settings import write_settings


def event(context: str, number: int, **headers: str) -> Published:
    """Return an event as the worker sends it, of one of three types."""
    kind = ("order.paid", "order.sent", "user.made")[number % 3]
    own = {
        **dict.fromkeys(("Nats-Msg-Id", "ce-id"), str(uuid.uuid5(uuid.NAMESPACE_URL, f"{context}{number}"))),
        "ce-source": f"/{context}",
        "ce-type": kind,
        "ce-time": "2026-01-02T03:04:05.678901Z",
        "ce-subject": f"order/{number}",
        "ce-eventversion": "1",
    }
    body = json.dumps({"number": number, "text": "ü" * 30}, ensure_ascii=False).encode()
    return Published(f"{context}.event.{kind}.v1", own | headers, body)


def events_of(context: str, *bounds: int) -> list[Published]:
    """Return an event for each number of a range."""
    return [event(context, number) for number in range(*bounds)]


def copy_of(message: Published) -> Published:
    """Return it with the same id, which the server takes for another since it reads Nats-Msg-Id alone."""
    return replace(message, headers={k: v for k, v in message.headers.items() if k != "Nats-Msg-Id"})


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake, and how to land in it."""

    folder: Path
    settings: Settings
    spark: SparkSession | None = None

    async def land(
        self, *streams: str, on_progress: Callable[[str], None] | None = None, **options: Any
    ) -> LandResult:
        """Land once, with the options of LandOptions, in a thread: the job has event loops of its own."""
        return await asyncio.to_thread(
            land,
            self.spark,
            self.settings,
            lake=str(self.folder),
            streams=streams,
            options=LandOptions(**options),
            on_progress=on_progress or (lambda _text: None),
        )

    async def left(self, stream: str) -> int:
        """Return how many messages a run would land."""
        found = await asyncio.to_thread(count, self.settings, lake=str(self.folder), streams=[stream])
        return found.streams[0].left

    def table(self, table_schema: TableSchema) -> LakeTable:
        return LakeTable(str(self.folder), table_schema)

    def rows(self, table_schema: TableSchema) -> list[dict[str, Any]]:
        """Read all of a table, by a reader that is not Spark."""
        table = self.table(table_schema).open()
        found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist() if table else []
        return found

    def count(self, table_schema: TableSchema) -> int:
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


def lake_at(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake in a folder, whose jobs reach the server at ``url``."""
    folder.mkdir(exist_ok=True)
    return Lake(folder, write_settings(folder / "settings.toml", monkeypatch, nats_url=url, consumers=""))


class DiedError(Exception):
    """The run ends here."""
