"""A drain is ``run --until-empty`` in Spark tasks; tests/acceptance/test_until_empty.py tests that worker."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import api
from sea_mq_worker.pipeline.errors import translated
from sea_mq_worker.pipeline.jobs.drain import drain
from tests.support.jetstream import connected
from tests.support.pipeline_settings import values_of, write_settings
from tests.support.rows import add_event
from tests.support.worker import Deployment, apply_streams

EVENTS = 2_000
FILL = f"""
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', '{{}}' FROM generate_series(1, {EVENTS})"""


async def test_all_tasks_publish_one_backlog(
    *,
    spark: SparkSession,
    outbound: Deployment,
    pool: asyncpg.Pool,
    nats_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await apply_streams(outbound, tmp_path / "streams")
    await pool.execute(FILL)
    bad = await add_event(pool, event_type="no such thing!")
    file, values = tmp_path / "settings.toml", values_of(outbound)

    settings = write_settings(file, monkeypatch, **values)
    left = await asyncio.to_thread(drain, spark, settings, tasks=2)
    other = write_settings(file, monkeypatch, **values | {"stream": "NONE"})
    with pytest.raises(ContractError, match="a publisher ended with exit code 3"), translated():
        await asyncio.to_thread(drain, spark, other, tasks=1)

    async with connected(nats_url) as broker:
        stored = (await api(broker, f"STREAM.INFO.{outbound.stream}"))["state"]["messages"]
    dead = await pool.fetchval("SELECT id FROM outbox_events WHERE state = 'DEAD'")
    assert (left.due, left.postponed, left.dead, stored, dead) == (0, 0, 1, EVENTS, bad)
