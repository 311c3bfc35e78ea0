"""A drain publishes a backlog by the worker's own relay in many tasks, and knows when to end."""

import asyncio
import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.pipeline.jobs.drain import DrainProgress, DrainResult, drain
from sea_mq_worker.settings import CONFIG_VARIABLE, load_settings
from tests.support.jetstream import connected
from tests.support.proxy import TcpProxy, proxied
from tests.support.rows import add_event, opened
from tests.support.servers import Database
from tests.support.waiting import eventually
from tests.support.worker import Deployment, apply_streams, deployment, running

EVENTS = 20_000
KEYS = 200
FILL = f"""
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', jsonb_build_object('n', n),
       CASE WHEN n % 2 = 0 THEN 'key-' || n % {KEYS} END
  FROM generate_series(1, {EVENTS}) n"""

# What a killed task held is soon free again.
IMPATIENT = {
    "outbox_publish_timeout_seconds": 1,
    "database_timeout_seconds": 2,
    "outbox_lease_seconds": 3,
    "outbox_batch_max": 100,
    "consumers": "",
}


@dataclass(frozen=True, slots=True)
class Site:
    """An empty outbox and its stream, before which a proxy stands."""

    target: Deployment
    pool: asyncpg.Pool
    broker: NatsConnection
    proxy: TcpProxy
    folder: Path

    async def stored(self) -> int:
        return int((await api(self.broker, f"STREAM.INFO.{self.target.stream}"))["state"]["messages"])

    async def states(self) -> dict[str, int]:
        rows = await self.pool.fetch("SELECT state, count(*) AS count FROM outbox_events GROUP BY 1")
        return {row["state"]: row["count"] for row in rows}


@pytest.fixture
async def site(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        opened(database, hints={}) as pool,
        connected(nats_url) as broker,
        proxied(nats_url) as (proxy, url),
    ):
        target = deployment(
            context=names, database_url=database.dsn, nats_url=url, handler_url="", **IMPATIENT
        )
        await apply_streams(target, tmp_path / "streams")
        yield Site(target, pool, broker, proxy, tmp_path)


# --- in one process: when it ends


@pytest.fixture
def drained(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[DrainResult]]:
    """Drain in the tests' session; its Python workers take the settings from a file."""
    values = site.target.environment.items()
    lines = [f"{name.removeprefix('SEA_MQ_').lower()} = {json.dumps(value)}\n" for name, value in values]
    file = site.folder / "settings.toml"
    file.write_text("".join(lines))
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))

    async def call(**given: Any) -> DrainResult:
        defaults = {"stop": asyncio.Event(), "on_progress": lambda _: None, "round_seconds": 2.0}
        return await drain(spark, load_settings(), **(defaults | given))

    return call


async def test_dead_postponed_and_blocked_events_do_not_keep_a_drain_from_ending(
    site: Site, drained: Callable[..., Awaitable[DrainResult]]
) -> None:
    add = partial(add_event, site.pool)
    await add()
    await add(ordering_key="free")
    abandoned = await add("CLAIMED")
    bad = await add(event_type="no such thing!")
    failing = await add(ordering_key="k", error="not now")
    behind = await add(ordering_key="k")
    later = await add()
    hour = "UPDATE outbox_events SET available_at = now() + interval '1 hour' WHERE id = ANY ($1)"
    await site.pool.execute(hour, [failing, later])

    look = await drained(dry_run=True)
    assert await site.stored() == 0
    done = await drained()

    assert (look.backlog, look.due, look.postponed, look.tasks) == (5, 5, 1, 2)
    assert (done.published, done.dead, done.due, done.postponed, done.left) == (3, 1, 1, 1, 2)
    found = {row["id"]: row["state"] for row in await site.pool.fetch("SELECT id, state FROM outbox_events")}
    assert {found[failing], found[behind], found[later]} == {"PENDING"}
    assert (found[bad], found[abandoned]) == ("DEAD", "PUBLISHED")


async def test_tasks_wait_for_the_broker_and_a_stop_leaves_no_claim(
    site: Site, drained: Callable[..., Awaitable[DrainResult]]
) -> None:
    await site.pool.execute(FILL)
    stop = asyncio.Event()
    told: list[DrainProgress] = []

    def tell(progress: DrainProgress) -> None:
        told.append(progress)
        site.proxy.heal()
        if progress.published:
            stop.set()

    site.proxy.refuse()
    done = await drained(stop=stop, on_progress=tell, round_seconds=1.0)

    assert told[0].published == 0
    assert "nats" in told[0].trouble.lower()
    assert done.stopped
    assert await site.states() == {"PENDING": done.left, "PUBLISHED": done.published}
    assert await site.stored() == done.published < EVENTS


# --- in a process of its own


async def kill_a_task(pool: asyncpg.Pool) -> None:
    """SIGKILL the Python worker of a task that holds claims; its name tells its process."""
    held = "SELECT claimed_by FROM outbox_events WHERE claimed_by LIKE 'drain-%' LIMIT 1"
    owner = await eventually(lambda: pool.fetchval(held), within=150, what="a task claims")
    found = re.search(r"-(\d+)-[0-9a-f]+#", owner)
    assert found
    os.kill(int(found[1]), signal.SIGKILL)


@pytest.mark.crash
@pytest.mark.slow
async def test_a_drain_beside_a_worker_publishes_each_event_once_and_in_order(site: Site) -> None:
    """One of its two tasks is killed while it holds claims; Spark runs the task again, as a cluster would."""
    await site.pool.execute(FILL)
    command = ("pipeline", "drain", "--master", "local[2,4]", "--json")
    async with running(site.target, site.folder / "drain.log", *command) as draining:
        await kill_a_task(site.pool)
        async with running(site.target, site.folder / "worker.log", log_level="debug") as worker:
            assert await draining.ended(within=120) == 0, draining.written

    told = json.loads(draining.written[draining.written.index("{\n") :])
    assert (told["backlog"], told["tasks"], told["left"]) == (EVENTS, 2, 0)
    assert 0 < told["published"] < EVENTS
    assert "event_published" in worker.events()
    assert await site.states() == {"PUBLISHED": EVENTS}
    assert await site.stored() == EVENTS
    rows = await site.pool.fetch("SELECT ordering_key, stream_seq FROM outbox_events ORDER BY seq")
    assert len({row["stream_seq"] for row in rows}) == EVENTS
    by_key = defaultdict(list)
    for row in rows:
        if row["ordering_key"] is not None:
            by_key[row["ordering_key"]].append(row["stream_seq"])
    assert len(by_key) == KEYS / 2
    assert all(seqs == sorted(seqs) for seqs in by_key.values())
