"""The definitions as they are, three replicas and all, by the nats CLI."""

import os
import subprocess
from pathlib import Path

import pytest

from sea_mq_worker.adapters.nats.manage.definitions import definitions
from sea_mq_worker.adapters.nats.manage.sync_definitions import check
from sea_mq_worker.resources import resource_folder
from tests.support.jetstream import connected
from tests.support.nats_cli import nats_cli
from tests.support.nats_cluster import nats_cluster

STREAMS = resource_folder("streams")
ROOM_BYTES = 64 * 2**30
"""max_bytes is reserved when a stream is made; nothing near it is written."""


@pytest.mark.clause("SDS-047: JetStreamStream")
@pytest.mark.clause("SDS-047: DurableConsumer")
async def test_the_nats_cli_takes_every_file_as_it_is(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = nats_cli()
    async with nats_cluster(tmp_path_factory.mktemp, room_bytes=ROOM_BYTES) as cluster:
        url = cluster.nodes[0].url

        def add(kind: str, *arguments: str | Path) -> None:
            command = [program, "--server", url, kind, "add", "--config", *arguments]
            environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=60, check=True)

        for file in sorted(STREAMS.glob("*.json")):
            add("stream", file)
        for file in sorted((STREAMS / "consumers").glob("*.json")):
            add("consumer", file, file.stem.partition(".")[0])
        async with connected(url) as connection:
            assert await check(connection, definitions(STREAMS)) == []
