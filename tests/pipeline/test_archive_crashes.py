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

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import LakeTable
from tests.pipeline.archiving import Desk

EVENTS = 8_000
BATCH = 5_000
SLOW = 1_000
"""Deletions a second, and in a transaction: a batch takes seconds."""
KILLS = 10
KILLED_WITHIN_SECONDS = 8.0
"""Time from the first effect of a run, in which the run cannot end."""

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
    options = ["--lake", str(lake), "--before", "1h", "--batch-rows", str(BATCH)]
    pace = ["--per-second", str(SLOW), "--master", "local[2]"]
    process = subprocess.Popen([*command, *options, *pace], start_new_session=True)
    try:
        yield process
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_an_event_is_in_the_outbox_or_whole_in_the_lake_after_each_of_ten_kills_at_random(
    desk: Desk,
) -> None:
    lake, inserted = Path(desk.lake), dict[str, str]()

    async def work() -> tuple[int, int]:
        return whole_files(lake), int(await desk.pool.fetchval("SELECT count(*) FROM outbox_events"))

    for _ in range(KILLS):
        await desk.pool.execute(INSERT, EVENTS)
        inserted |= dict(await desk.pool.fetch(FINGERPRINT))
        before = await work()
        with running(lake) as process:
            while await work() == before:
                assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, random.uniform(0, KILLED_WITHIN_SECONDS))

        kept = dict(await desk.pool.fetch(FINGERPRINT))
        archived = lake_fingerprint(desk)
        assert len(dict(archived)) == len(archived)
        assert kept | dict(archived) == dict(archived) | kept == inserted

    await desk.run(before=datetime.now(UTC))
    assert await desk.pool.fetch(FINGERPRINT) == []
    archived = lake_fingerprint(desk)
    assert (len(archived), dict(archived)) == (KILLS * EVENTS, inserted)
    assert await desk.pool.fetchval("SELECT sum(affected) FROM operator_actions") == KILLS * EVENTS


def whole_files(lake: Path) -> int:
    """Count the files that are written to their end."""
    return sum(path.read_bytes()[-4:] == b"PAR1" for path in lake.rglob("*.parquet"))


def lake_fingerprint(desk: Desk) -> list[tuple[str, str]]:
    """Return what PostgreSQL's statement does, by Spark's own means; a double shows as one row more."""
    at = F.regexp_replace(F.col("published_at").cast("string"), "$", "+00")
    rows = LakeTable(desk.lake, ARCHIVE).read(desk.spark)
    return [tuple(row) for row in rows.select("id", F.md5(F.concat("payload", at, "seq"))).collect()]
