"""Each figure of the report is the one that a count of the rows gives, and a period costs what it holds."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.jobs.report.job import report
from sea_mq_worker.pipeline.jobs.report.model import Report
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, GOLD, TableSchema
from sea_mq_worker.pipeline.lake.table import LakeTable, Watermark
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.report_reference import BEGIN, CONTEXT, World, durations, figures, percentile, world

PERIODS = (
    (BEGIN + timedelta(seconds=15), BEGIN + timedelta(minutes=2, seconds=5), 1),
    (BEGIN - timedelta(hours=1), BEGIN + timedelta(minutes=3), 60),
    (BEGIN + timedelta(days=1), BEGIN + timedelta(days=2), 900),
    (None, None, 7 * 86_400),
)


@pytest.mark.slow
async def test_every_figure_is_the_one_that_a_count_of_the_rows_gives(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    lake, given = str(tmp_path / "lake"), world(1, datetime.now(UTC))
    await fill(pool, given)
    await asyncio.to_thread(commit, spark, lake, ARCHIVE, given.archive)
    await asyncio.to_thread(commit, spark, lake, GOLD, given.gold)

    for chosen_since, chosen_until, step in PERIODS:
        found = await asyncio.to_thread(
            report, spark, settings, since=chosen_since, until=chosen_until, lake=lake
        )

        since, until = (
            chosen_since or min(first_times(given)).replace(microsecond=0),
            chosen_until or found.at,
        )
        assert (found.since, found.until, found.bin_seconds) == (since, until, step)
        assert shown(found) == figures(given, since, until, found.at, step)
        exact = durations(given, since, until, step)
        assert [(each.way, each.at, each.count) for each in found.latencies] == [
            (*key, len(seconds)) for key, seconds in exact.items()
        ]
        for each, seconds in zip(found.latencies, exact.values(), strict=True):
            assert each.longest == seconds[-1]
            wanted = [percentile(seconds, share) for share in (50, 95, 99)]
            assert [each.p50, each.p95, each.p99] == pytest.approx(wanted, rel=0.021, abs=1e-6)


@pytest.mark.slow
async def test_a_report_of_a_day_opens_no_file_of_another_day(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    lake, days = tmp_path / "lake", [BEGIN + timedelta(days=n, hours=12) for n in range(3)]
    events = [event for event in world(2, BEGIN).outbox if event["published_at"]][:9]
    of_days = [
        event | {"created_at": day, "published_at": day, "context": CONTEXT, "date": day.date()}
        for event, day in zip(events, days * 3, strict=True)
    ]
    stored = [
        {"minute": day, "context": CONTEXT, "event_type": "a", "events": 5, "date": day.date()}
        for day in days
    ]
    await asyncio.to_thread(commit, spark, str(lake), ARCHIVE, of_days)
    await asyncio.to_thread(commit, spark, str(lake), GOLD, stored)
    for day in (days[0], days[2]):
        for folder in lake.glob(f"*/*/date={day.date()}"):
            shutil.rmtree(folder)

    begin = BEGIN + timedelta(days=1)
    end = begin + timedelta(days=1)
    found = await asyncio.to_thread(report, spark, settings, since=begin, until=end, lake=str(lake))

    assert found.totals.archived == 3
    assert sum(each.count for each in found.stream_bins) == 5


@pytest.mark.slow
async def test_dead_letters_come_from_their_stream(
    spark: SparkSession, stream: Stream, settings_with: Callable[..., Settings]
) -> None:
    subject = {"Dlq-Original-Subject": "a.event.b.v1"}
    await stream.store(2, **{"Dlq-Reason": "REJECTED"}, **subject)
    await stream.store(1, **{"Dlq-Reason": "foreign"}, **subject)
    found = await asyncio.to_thread(report, spark, settings_with(dlq_stream=stream.name))

    assert [(each.reason, each.count) for each in found.dead_letters] == [("REJECTED", 2), ("foreign", 1)]
    assert {each.subject for each in found.dead_letters} == {"a.event.b.v1"}
    assert {each.reason: each.count for each in found.dead_letter_bins} == {"REJECTED": 2, "others": 1}


def first_times(given: World) -> Iterator[datetime]:
    own = (row for row in given.archive if row["context"] == CONTEXT)
    yield from (row["created_at"] for row in (*given.outbox, *own))
    yield from (row["received_at"] for row in given.inbox)


def shown(found: Report) -> dict[str, Any]:
    """Return the fields that the reference counts, in its form."""
    given = asdict(found)
    return {
        **{
            name: given[name]
            for name in ("totals", "bins", "attempts", "dead_letter_count", "keys", "types", "backlog")
        },
        "dead": [(each.reason, each.event_type, each.count) for each in found.dead],
        "dead_letters": [(each.reason, each.subject, each.count) for each in found.dead_letters],
        "latest": {(each.reason, each.subject): each.latest for each in found.dead_letters},
        "dead_letter_bins": [(each.at, each.reason, each.count) for each in found.dead_letter_bins],
        "stream_bins": [(each.at, each.context, each.count) for each in found.stream_bins],
    }


async def fill(pool: asyncpg.Pool, given: World) -> None:
    aggregate = {"aggregate_type": "order", "aggregate_id": "1"}
    outbox = [row | aggregate | {"payload": json.loads(row["payload"])} for row in given.outbox]
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for table, rows in (("outbox_events", outbox), ("inbox_messages", given.inbox)):
            names = ", ".join(rows[0])
            taken = f"SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)"
            await connection.execute(f"INSERT INTO {table} ({names}) {taken}", json.dumps(rows, default=str))


def commit(spark: SparkSession, lake: str, table_schema: TableSchema, rows: Iterable[dict[str, Any]]) -> None:
    table = LakeTable(lake, table_schema)
    schema = from_arrow_schema(table_schema.schema)
    values = [tuple(row.get(name) for name in schema.names) for row in rows]
    assert table.commit(table.write(spark.createDataFrame(values, schema)), Watermark("test", 1))
