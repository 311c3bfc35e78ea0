"""Fixtures of the pipeline's tests; one Spark session, whose executor is a process of its own, serves all."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jetstream.source import JetStreamSource
from sea_mq_worker.pipeline.session import spark_session
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import LandedLake, lake_at
from tests.support.jetstream import connected
from tests.support.pipeline_settings import write_settings
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.worker import Deployment, deployment

MASTER = os.environ.get("SEA_MQ_TEST_SPARK_MASTER", "local-cluster[1,2,1024]")
"""One executor of two cores, in a process of its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "1g"}
    conf |= {"spark.ui.enabled": "true", "spark.ui.port": "0"}  # its REST API tells what jobs cost
    with spark_session("tests", master=MASTER, conf=conf) as session:
        session.dataSource.register(JetStreamSource)
        yield session


@pytest.fixture
def settings(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of the test's database, which the tasks' processes read, too."""
    return write_settings(tmp_path / "settings.toml", monkeypatch, database_url=database.dsn)


@pytest.fixture
def settings_with(
    database: Database, nats_url: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Settings]:
    """Write the settings of a context with both servers and no inbox, and what else is given."""
    usual = {"database_url": database.dsn, "nats_url": nats_url, "context": names, "consumers": ""}
    return lambda **given: write_settings(tmp_path / "settings.toml", monkeypatch, **(usual | given))


@pytest.fixture
def outbound(database: Database, nats_url: str, names: str) -> Deployment:
    """A worker that only publishes."""
    servers = {"database_url": database.dsn, "nats_url": nats_url}
    return deployment(context=names, handler_url="", consumers="", **servers)


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    async with opened(database, hints=OPERATOR_HINTS) as made:
        yield made


@pytest.fixture
async def stream(nats_url: str, names: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stream]:
    """An empty stream, of the server that the settings name."""
    monkeypatch.setenv("SEA_MQ_NATS_URL", nats_url)
    async with connected(nats_url) as connection:
        own = Stream(connection, names)
        await own.create()
        yield own
        await own.drop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> LandedLake:
    """A lake in a folder with an odd name, and the settings to land in it."""
    return lake_at(spark, tmp_path / "a lake at 5% of ü", nats_url, monkeypatch)
