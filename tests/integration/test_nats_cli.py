"""The definitions as they are, three replicas and all: by the worker, and by the nats CLI."""

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from sea_mq_worker.adapters.nats.connection import api
from sea_mq_worker.adapters.nats.manage.definitions import definitions
from sea_mq_worker.adapters.nats.manage.sync_definitions import apply, check
from sea_mq_worker.resources import resource_folder
from tests.support.jetstream import connected
from tests.support.nats_cli import nats_cli
from tests.support.nats_cluster import nats_cluster

STREAMS = resource_folder("streams")
ROOM_BYTES = 64 * 2**30
"""max_bytes is reserved when a stream is made; nothing near it is written."""

Cli = Callable[..., str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Run three servers as a cluster on loopback, and give the URL of one."""
    async with nats_cluster(tmp_path_factory.mktemp, room_bytes=ROOM_BYTES) as cluster:
        yield cluster.nodes[0].url


@pytest.fixture
def cli(cluster: str, tmp_path: Path) -> Cli:
    """Run the nats CLI against the cluster; return what it prints."""
    program = nats_cli()

    def run(*arguments: object) -> str:
        finished = subprocess.run(
            [program, "--server", cluster, *map(str, arguments)],
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == 0, f"{arguments}: {finished.stdout}{finished.stderr}"
        return finished.stdout

    return run


@pytest_asyncio.fixture(autouse=True)
async def empty(cluster: str) -> AsyncIterator[None]:
    """Take away what a test has made."""
    yield
    async with connected(cluster) as connection:
        for name in (await api(connection, "STREAM.NAMES"))["streams"] or []:
            await api(connection, f"STREAM.DELETE.{name}")


async def test_the_worker_applies_the_files_as_they_are(cluster: str) -> None:
    async with connected(cluster) as connection:
        await apply(connection, definitions(STREAMS))
        assert await check(connection, definitions(STREAMS)) == []


@pytest.mark.clause("SDS-047: JetStreamStream")
@pytest.mark.clause("SDS-047: DurableConsumer")
async def test_the_nats_cli_takes_every_file_as_it_is(cluster: str, cli: Cli) -> None:
    for file in sorted(STREAMS.glob("*.json")):
        cli("stream", "add", "--config", file)
    for file in sorted((STREAMS / "consumers").glob("*.json")):
        cli("consumer", "add", file.stem.partition(".")[0], "--config", file)

    async with connected(cluster) as connection:
        assert await check(connection, definitions(STREAMS)) == []
