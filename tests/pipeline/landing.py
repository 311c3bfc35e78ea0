"""Events as the worker sends them, and the lake that they are landed in."""

import asyncio
import json
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline import land
from sea_mq_worker.pipeline.jobs.land import LandResult, remaining
from sea_mq_worker.pipeline.lake import Lake
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
    """Return it with the same ID, which the server takes for another since it reads Nats-Msg-Id alone."""
    return replace(message, headers={k: v for k, v in message.headers.items() if k != "Nats-Msg-Id"})


@dataclass(frozen=True, slots=True)
class LandedLake:
    """A lake, and how to land in it."""

    spark: SparkSession
    folder: Path
    settings: Settings

    async def land(self, *streams: str, **options: Any) -> LandResult:
        """Land as a program does in which no event loop runs."""
        given = {"lake": str(self.folder), "streams": streams, **options}
        return await asyncio.to_thread(land, self.spark, self.settings, **given)

    async def left(self, stream: str) -> int:
        """Return how many messages a run would land."""
        given = {"lake": str(self.folder), "streams": [stream]}
        found = await asyncio.to_thread(remaining, self.spark, self.settings, **given)
        return found.streams[0].left

    def sql(self, statement: str) -> list[Any]:
        """Run a statement, in which ``{bronze}`` and the like name tables."""
        names = {
            name: Lake(self.spark, str(self.folder)).table(name) for name in ("bronze", "silver", "gold")
        }
        return self.spark.sql(statement.format(**names)).collect()

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.folder / name))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Read all of a table, by a reader that is not Spark."""
        if not DeltaTable.is_deltatable(str(self.folder / name)):
            return []
        found: list[dict[str, Any]] = self.table(name).to_pyarrow_table().to_pylist()
        return found

    def count(self, name: str) -> int:
        exists = DeltaTable.is_deltatable(str(self.folder / name))
        return self.table(name).count() if exists else 0

    def seqs(self, name: str, stream: str) -> list[int]:
        """Return the sequences of a stream's rows, sorted."""
        return sorted(row["seq"] for row in self.rows(name) if row["stream"] == stream)

    def versions(self) -> list[int]:
        """Return how often each table was committed to."""
        return [self.table(name).version() for name in ("bronze", "silver", "gold")]

    def assert_counted(self) -> None:
        """Gold tells what silver has, and silver has each ID once."""
        silver = self.rows("silver")
        ids = Counter(
            (row["message_id"], "" if is_uuid(row["message_id"]) else row["stream"]) for row in silver
        )
        assert ids.most_common(1)[0][1] == 1
        minutes: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
        for row in silver:
            minute = row["published_at"].replace(second=0, microsecond=0)
            minutes[row["context"], row["event_type"], minute].append(row)
        found = self.rows("gold")
        gold = {(row["context"], row["event_type"], row["minute"]): row for row in found}
        assert gold.keys() == minutes.keys()
        assert len(gold) == len(found)
        for key, rows in minutes.items():
            assert_minute(gold[key], rows)


def assert_minute(counted: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    delays = sorted(
        (row["published_at"] - row["occurred_at"]).total_seconds() for row in rows if row["occurred_at"]
    )
    late = sum(delay > 60 for delay in delays)
    assert (counted["events"], counted["late"], counted["bytes"]) == (
        len(rows),
        late,
        sum(row["bytes"] for row in rows),
    )
    assert counted["date"] == counted["minute"].date()
    for share in (50, 95, 99):
        rank = -(-share * len(delays) // 100) - 1
        assert counted[f"p{share}_seconds"] == pytest.approx(delays[rank] if delays else None)


def is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def lake_at(spark: SparkSession, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> LandedLake:
    """Return a lake in a folder, whose jobs reach the server at ``url``."""
    folder.mkdir(exist_ok=True)
    settings = write_settings(
        folder.with_name(f"{folder.name}.toml"), monkeypatch, nats_url=url, consumers=""
    )
    return LandedLake(spark, folder, settings)
