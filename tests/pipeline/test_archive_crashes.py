"""The archive is killed at random, and loses and doubles no event."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.pipeline.lake import ARCHIVE, Lake
from sea_mq_worker.settings import Settings
from tests.pipeline.archiving import Desk

EVENTS = 8_000
SLOW = 2_000
"""Deletions a second, so that the deletion of all takes seconds."""
KILLS = 10
KILLED_WITHIN_SECONDS = 6.0
"""Time from the first effect of a run, in which the run hardly ends."""

INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, state, published_at)
SELECT gen_random_uuid(), 'order', 'o-' || i, 'order.paid', jsonb_build_object('n', i), 'PUBLISHED',
       now() - interval '3 days' - i * interval '10 seconds'
  FROM generate_series(1, $1::int) AS i
"""
FINGERPRINT = "SELECT id::text, md5(payload::text || published_at::text || seq) AS print FROM outbox_events"


@contextmanager
def running(lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an archive of its own processes, and kill them all at once at the end."""
    command = [sys.executable, "-m", "sea_mq_worker", "pipeline", "archive", "--reason", "old"]
    options = ["--lake", str(lake), "--before", "1h", "--per-second", str(SLOW), "--master", "local[2]"]
    process = subprocess.Popen([*command, *options], start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_an_event_is_in_the_outbox_or_once_in_the_lake_after_each_of_ten_kills_at_random(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    desk, inserted = Desk(spark, settings, pool, tmp_path / "lake"), dict[str, str]()
    await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")

    async def work() -> tuple[int, int]:
        files = sum(1 for _ in desk.folder.rglob("*.parquet"))
        return files, int(await pool.fetchval("SELECT count(*) FROM outbox_events"))

    seed = random.randrange(10_000)
    moments = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    for _ in range(KILLS):
        await pool.execute(INSERT, EVENTS)
        inserted |= dict(await pool.fetch(FINGERPRINT))
        before = await work()
        with running(desk.folder) as process:
            while await work() == before:
                assert process.poll() is None
            await asyncio.to_thread(wait, process, moments.uniform(0, KILLED_WITHIN_SECONDS))

        kept = dict(await pool.fetch(FINGERPRINT))
        archived = fingerprint(desk)
        assert len(dict(archived)) == len(archived)
        assert kept | dict(archived) == dict(archived) | kept == inserted

    await desk.run(before=datetime.now(UTC))
    assert await pool.fetch(FINGERPRINT) == []
    archived = fingerprint(desk)
    assert (len(archived), dict(archived)) == (KILLS * EVENTS, inserted)
    assert await pool.fetchval("SELECT sum(affected) FROM operator_actions") == KILLS * EVENTS


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def fingerprint(desk: Desk) -> list[tuple[str, str]]:
    """Return what PostgreSQL's statement does, by Spark's own means; a double shows as one row more."""
    lake = Lake(desk.spark, desk.lake)
    if not lake.exists(ARCHIVE.name):
        return []
    at = fn.regexp_replace(fn.col("published_at").cast("string"), "$", "+00")
    rows = lake.read(ARCHIVE.name).select("id", fn.md5(fn.concat("payload", at, "seq")))
    return [tuple(row) for row in rows.collect()]
