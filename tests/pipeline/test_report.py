"""The report's figures are what SQL counts, with the archive's events among them."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest
import pytest_asyncio
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.adapters.postgres.connection import OPERATOR_HINTS
from sea_mq_worker.pipeline.jobs.report.job import report
from sea_mq_worker.pipeline.jobs.report.model import Report
from sea_mq_worker.pipeline.jobs.report.page import page
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, GOLD, TableSchema
from sea_mq_worker.pipeline.lake.table import LakeTable, Watermark
from sea_mq_worker.settings import Settings
from tests.support.pipeline_settings import write_settings
from tests.support.reports import HOSTILE
from tests.support.rows import opened
from tests.support.servers import Database

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)

EVENTS = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, created_at,
    ordering_key, publish_attempts, state, published_at, publish_error)
SELECT gen_random_uuid(), 'order', n::text, CASE WHEN n % 5 = 0 THEN $2 ELSE 'order.paid' END,
    jsonb_build_object('n', n), at, at, CASE WHEN n % 3 = 0 THEN $2 WHEN n % 3 = 1 THEN 'key-' || n % 50 END,
    1 + (n % 10 = 0)::int, state,
    CASE state WHEN 'PUBLISHED' THEN at + make_interval(secs => n % 100) END,
    CASE state WHEN 'DEAD' THEN 'MESSAGE_TOO_LARGE: ' || n END
FROM (
    SELECT n, $1::timestamptz + make_interval(secs => n * 10) AS at,
        CASE WHEN n % 97 = 0 THEN 'DEAD' WHEN n % 89 = 0 THEN 'PENDING' ELSE 'PUBLISHED' END AS state
    FROM generate_series(0, 999) AS n
) AS given
"""
MESSAGES = """
INSERT INTO inbox_messages (message_id, subject, received_at, processed_at, attempts, consumer,
    dead_letter_reason, dead_letter_begun_at, dead_lettered_at)
SELECT gen_random_uuid(), 'a.event.b.v1', at, CASE WHEN n % 50 > 1 THEN at + make_interval(secs => 2) END,
    1 + n % 2, 'durable', dead, CASE WHEN dead IS NOT NULL THEN at END, CASE WHEN dead IS NOT NULL THEN at END
FROM (
    SELECT n, $1::timestamptz + make_interval(secs => n * 10) AS at,
        CASE WHEN n % 50 = 0 THEN 'REJECTED' END AS dead
    FROM generate_series(0, 499) AS n
) AS given
"""


@pytest_asyncio.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database, hints=OPERATOR_HINTS) as pool, pool.acquire() as connection:
        await connection.execute("SET session_replication_role = replica")  # rows with a past, as they are
        await connection.execute(EVENTS, BEGIN, HOSTILE)
        await connection.execute(MESSAGES, BEGIN)
        await connection.execute("RESET session_replication_role")
        yield pool


@pytest_asyncio.fixture
async def letters(nats_url: str, names: str) -> AsyncIterator[str]:
    """A stream with three dead letters for one reason and one for another."""
    connection = await nats.connect(nats_url)
    stream = connection.jetstream()
    await stream.add_stream(name=names, subjects=[f"{names}.>"], allow_direct=True)
    for reason in ("REJECTED", "REJECTED", "REJECTED", HOSTILE.replace("\u202e", "")):
        headers = {"Dlq-Reason": reason, "Dlq-Original-Subject": "a.event.b.v1"}
        await stream.publish(f"{names}.dlq", b"{}", headers=headers)
    yield names
    await stream.delete_stream(names)
    await connection.close()


@pytest.fixture
def settings(
    database: Database, nats_url: str, letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    place = tmp_path / "settings.toml"
    return write_settings(
        place, monkeypatch, database_url=database.dsn, nats_url=nats_url, dlq_stream=letters
    )


@pytest.mark.slow
async def test_the_figures_are_those_that_sql_counts_and_the_archive_adds_each_own_event_once(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    there = await pool.fetchval("SELECT id::text FROM outbox_events WHERE state = 'PUBLISHED' LIMIT 1")
    rows = [archived(there, 1), archived("a", 1), archived("a", 2), archived("b", 1)]
    rows.append(archived("c", 1) | {"context": "another"})
    gold = {"event_type": "x", "minute": BEGIN, "events": 6, "context": "other", "date": BEGIN.date()}
    await asyncio.to_thread(commit, spark, lake, ARCHIVE, rows)
    await asyncio.to_thread(commit, spark, lake, GOLD, [gold])

    found = await asyncio.to_thread(report, spark, settings, since=BEGIN, lake=lake)

    await is_what_sql_counts(found, pool, archived=2)
    assert [(each.context, each.count) for each in found.stream_bins] == [("other", 6)]
    other = HOSTILE.replace("\u202e", "")
    assert {each.reason: each.count for each in found.dead_letters} == {"REJECTED": 3, other: 1}
    assert found.dead_letter_count == sum(each.count for each in found.dead_letter_bins) == 4
    text = page(found)
    assert f"{found.totals.published:,}" in text
    assert "Streams" in text
    assert HOSTILE not in text


@pytest.mark.slow
async def test_each_minute_that_overlaps_the_period_counts_whole_in_the_streams_part(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    minutes = [BEGIN + timedelta(minutes=n) for n in range(-1, 4)]
    gold = [{"event_type": "x", "minute": at, "events": 7, "context": "sea"} for at in minutes]
    await asyncio.to_thread(commit, spark, lake, GOLD, [row | {"date": row["minute"].date()} for row in gold])
    since, until = BEGIN + timedelta(seconds=15), BEGIN + timedelta(minutes=2, seconds=5)

    found = await asyncio.to_thread(report, spark, settings, since=since, until=until, lake=lake)

    assert found.bin_seconds == 1
    assert [(each.at, each.count) for each in found.stream_bins] == [(at, 7) for at in minutes[1:4]]


async def is_what_sql_counts(found: Report, tables: asyncpg.Pool, *, archived: int) -> None:
    """Compare; archived events were written at the begin, have no key, and `{}` for a payload."""
    outbox = await tables.fetchrow(
        "SELECT count(*) AS written, count(published_at) AS published,"
        " sum(octet_length(payload::text)) AS size,"
        " count(published_at) FILTER (WHERE publish_attempts > 1) AS retried,"
        " count(*) FILTER (WHERE state = 'DEAD') AS dead, count(*) FILTER (WHERE is_open) AS open,"
        " percentile_disc(array[0.5, 0.95, 0.99]) WITHIN GROUP"
        " (ORDER BY extract(epoch FROM published_at - occurred_at)::float) AS seconds FROM outbox_events"
    )
    inbox = await tables.fetchrow(
        "SELECT count(*) AS received, count(processed_at) AS processed, count(dead_lettered_at) AS dead,"
        " count(processed_at) FILTER (WHERE attempts > 1) AS retried FROM inbox_messages"
    )
    totals = found.totals
    assert (totals.written, totals.published, totals.written_bytes, totals.outbox_retried, totals.dead) == (
        outbox["written"] + archived, outbox["published"] + archived, outbox["size"] + 2 * archived,
        outbox["retried"] + 1, outbox["dead"],
    )  # fmt: skip
    assert (totals.received, totals.processed, totals.dead_lettered, totals.inbox_retried) == (
        inbox["received"], inbox["processed"], inbox["dead"], inbox["retried"],
    )  # fmt: skip
    latency = found.latency("outbox")
    assert latency is not None
    assert [latency.p50, latency.p95, latency.p99] == pytest.approx(outbox["seconds"], abs=1.001)
    assert sum(each.count for each in found.backlog if each.way == "outbox") == outbox["open"]
    assert {each.reason for each in found.dead} == {"MESSAGE_TOO_LARGE"}
    keys = await tables.fetch(
        "SELECT ordering_key, count(*), sum(octet_length(payload::text)) FROM outbox_events"
        " WHERE ordering_key IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 3 DESC LIMIT 1"
    )
    assert [(each.name, each.count, each.size) for each in found.keys.largest[:1]] == list(map(tuple, keys))
    bins = await tables.fetch(
        "SELECT date_bin(make_interval(secs => $1), created_at, 'epoch') AS at, count(*) FROM outbox_events"
        " GROUP BY 1 ORDER BY 1", found.bin_seconds,
    )  # fmt: skip
    first, *others = [(each.at, each.written) for each in found.bins if each.written]
    assert [(first[0], first[1] - archived), *others] == list(map(tuple, bins))


def archived(identity: str, attempt: int) -> dict[str, Any]:
    return {
        "id": identity,
        "event_type": "order.paid",
        "payload": json.dumps({}),
        "occurred_at": BEGIN,
        "created_at": BEGIN,
        "publish_attempts": attempt,
        "published_at": BEGIN + timedelta(minutes=attempt),
        "context": "sea",
        "date": BEGIN.date(),
    }


def commit(spark: SparkSession, lake: str, table_schema: TableSchema, rows: list[dict[str, Any]]) -> None:
    table = LakeTable(lake, table_schema)
    schema = from_arrow_schema(table_schema.schema)
    values = [tuple(row.get(name) for name in schema.names) for row in rows]
    assert table.commit(table.write(spark.createDataFrame(values, schema)), Watermark("test", 1))
