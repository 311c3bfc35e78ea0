"""A drain is ``run --until-empty`` in Spark tasks; tests/acceptance/test_until_empty.py tests that worker."""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from sea_mq_worker.adapters.nats.connection import api
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.pipeline.jobs.drain import drain
from sea_mq_worker.pipeline.spark_errors import translated
from sea_mq_worker.settings import Settings
from tests.support.jetstream import connected
from tests.support.pipeline_settings import write_settings
from tests.support.rows import add_event, opened
from tests.support.servers import Database
from tests.support.worker import Deployment, apply_streams, deployment

EVENTS = 2_000
FILL = f"""
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', '{{}}' FROM generate_series(1, {EVENTS})"""


class Target:
    """A deployment whose settings Spark's Python workers read from a file."""

    def __init__(self, target: Deployment, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = target.stream
        self._values = {
            name.removeprefix("SEA_MQ_").lower(): value for name, value in target.environment.items()
        }
        self._file = folder / "settings.toml"
        self._monkeypatch = monkeypatch

    def settings(self, **given: str) -> Settings:
        return write_settings(self._file, self._monkeypatch, **(self._values | given))


@pytest_asyncio.fixture
async def target(
    database: Database, nats_url: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Target:
    given = {"database_url": database.dsn, "nats_url": nats_url, "handler_url": "", "consumers": ""}
    chosen = deployment(context=names, **given)
    await apply_streams(chosen, tmp_path / "streams")
    return Target(chosen, tmp_path, monkeypatch)


async def test_all_tasks_publish_one_backlog(
    spark: SparkSession, database: Database, nats_url: str, target: Target
) -> None:
    async with opened(database, hints={}) as pool, connected(nats_url) as broker:
        await pool.execute(FILL)
        bad = await add_event(pool, event_type="no such thing!")
        left = await asyncio.to_thread(drain, spark, target.settings(), tasks=2)
        stored = (await api(broker, f"STREAM.INFO.{target.stream}"))["state"]["messages"]
        dead = await pool.fetchval("SELECT id FROM outbox_events WHERE state = 'DEAD'")
        with pytest.raises(ContractError, match="a publisher ended with exit code 3"), translated():
            await asyncio.to_thread(drain, spark, target.settings(context="other"), tasks=1)

    assert (left.due, left.postponed, left.dead, stored, dead) == (0, 0, 1, EVENTS, bad)
