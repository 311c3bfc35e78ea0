"""Several workers beside one database share its work, and nobody sees how many they were."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.support.servers import Database
from tests.support.site import Site, site
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

REPLICAS = 3
BATCH = 20
"""Small, so that a backlog is in many hands."""
ROUNDS_MAX = 20
PUBLISHED = "sea_mq_outbox_published_total"
PROCESSED = "sea_mq_inbox_processed_total"


@pytest.mark.slow
async def test_replicas_share_both_directions_and_keep_every_keys_order(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    async with (
        site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as here,
        AsyncExitStack() as stack,
    ):
        workers = [
            await stack.enter_async_context(here.worker(name=f"w{number}", outbox_batch_max=BATCH))
            for number in range(REPLICAS)
        ]
        for worker in workers:
            await worker.ready()
        await work_until_each_had_a_part(here, workers)
        await here.quiet()
        rows = await here.database.fetchval("SELECT count(*) FROM outbox_events")

        async def all_are_counted() -> bool:
            return sum([await counted(worker, PUBLISHED) for worker in workers]) == rows

        await eventually(all_are_counted, what="each event is published by one worker and no other")
        await here.audit()


async def work_until_each_had_a_part(here: Site, workers: Sequence[WorkerProcess]) -> None:
    """Let events and messages come until every worker has published and processed some of them."""
    for number in count():
        assert number < ROUNDS_MAX, "a worker had no part"
        for key in range(20):
            await here.commit(10, ordering_key=f"key-{key}")
        await here.commit(100)
        await here.send(50)
        await here.quiet()
        parts = [await counted(worker, series) for worker in workers for series in (PUBLISHED, PROCESSED)]
        if all(parts):
            return


async def counted(worker: WorkerProcess, name: str) -> float:
    """Add up what a worker has counted under a name, whatever the labels."""
    return sum(
        value for series, value in (await worker.metrics()).items() if series.partition("{")[0] == name
    )
