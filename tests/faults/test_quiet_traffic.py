"""Plain traffic leaves no warning: a log that cries wolf is not read."""

import asyncio
import json
import random
import time
from contextlib import AsyncExitStack

import pytest

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.producer import enqueue
from tests.support.builders import enqueueable
from tests.support.jetstream import SECOND
from tests.support.pooler import transaction_pooler
from tests.support.servers import database_connection
from tests.support.site import SHIPPED, Site, SiteWith

PRODUCERS = 3
LOUD = {"warning", "error", "critical"}
LONG = [pytest.param(way, 200.0, marks=pytest.mark.long) for way in ("direct", "pooled", "two workers")]


async def produce(at: Site, number: int, until: float) -> None:
    """Commit some events again and again, each time in a transaction that lasts a moment."""
    chance = random.Random(number)
    async with database_connection(at.dsn) as connection:
        while time.monotonic() < until:
            async with connection.transaction():
                await connection.execute("SELECT pg_sleep($1)", chance.choice((0.0, 0.001, 0.05)))
                key = chance.choice((None, f"a{number}", f"b{number}"))
                events = [enqueueable(ordering_key=key) for _ in range(chance.randint(1, 3))]
                await enqueue(connection, *events)
                await connection.execute("SELECT pg_sleep($1)", chance.choice((0.0, 0.02, 0.1)))


async def send(at: Site, until: float) -> None:
    while time.monotonic() < until:
        await at.send(2)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("way", "seconds"), [("pooled", 10.0), *LONG])
async def test_plain_traffic_leaves_no_warning(
    way: str, seconds: float, site_with: SiteWith, own_postgres: EmbeddedPostgres
) -> None:
    names = ("one", "two") if way == "two workers" else ("one",)
    given = dict(SHIPPED)
    async with AsyncExitStack() as stack:
        if way == "pooled":
            url = await stack.enter_async_context(transaction_pooler(own_postgres, sessions=5))
            given |= {"database_url": url, "database_pooler": True}
        made = site_with(dsn=own_postgres.dsn, consumer={"ack_wait": 120 * SECOND})
        at = await stack.enter_async_context(made)
        given |= {"streams_folder": at.folder / "streams", "stream_max_bytes": 2**26, "stream_replicas": 1}
        workers = [await stack.enter_async_context(at.worker(name=name, **given)) for name in names]
        for worker in workers:
            await worker.ready()
        until = time.monotonic() + seconds
        await asyncio.gather(*(produce(at, number, until) for number in range(PRODUCERS)), send(at, until))
        await at.quiet()
        for worker in workers:
            await worker.stopped()
        await at.audit()
    lines = [json.loads(line) for worker in workers for line in worker.written.splitlines()]
    assert len(lines) >= 4 * len(workers)
    loud = [f"{line['event']}: {line.get('text', '')}" for line in lines if line["level"] in LOUD]
    assert not loud, "\n".join(loud)
