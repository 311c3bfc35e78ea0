"""``run --until-empty`` publishes a backlog beside running workers, and ends."""

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from tests.support.jetstream import connected
from tests.support.rows import add_event, opened
from tests.support.servers import Database
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, apply_streams, deployment, running

EVENTS = 20_000
KEYS = 200
FILL = f"""
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', jsonb_build_object('n', n),
       CASE WHEN n % 2 = 0 THEN 'key-' || n % {KEYS} END
  FROM generate_series(1, {EVENTS}) n"""
UNTIL_EMPTY = ("run", "--until-empty")
CLAIMED = "SELECT count(*) FROM outbox_events WHERE claimed_by LIKE '%-' || $1 || '-%'"


@dataclass(frozen=True, slots=True)
class Site:
    """An empty outbox and its stream."""

    target: Deployment
    pool: asyncpg.Pool
    broker: NatsConnection
    folder: Path

    async def states(self) -> dict[str, int]:
        rows = await self.pool.fetch("SELECT state, count(*) AS count FROM outbox_events GROUP BY 1")
        return {row["state"]: row["count"] for row in rows}

    async def has_claims_of(self, worker: WorkerProcess) -> bool:
        return await self.pool.fetchval(CLAIMED, str(worker.process.pid)) > 0


@pytest_asyncio.fixture
async def site(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Site]:
    given = {"database_url": database.dsn, "nats_url": nats_url, "handler_url": ""}
    async with opened(database, hints={}) as pool, connected(nats_url) as broker:
        target = deployment(context=names, outbox_batch_max=100, **given)
        await apply_streams(target, tmp_path / "streams")
        yield Site(target, pool, broker, tmp_path)


async def test_what_nobody_can_publish_now_is_left_and_told(site: Site) -> None:
    add = partial(add_event, site.pool)
    published = [await add(), await add(ordering_key="free"), await add(ordering_key="free")]
    bad = await add(event_type="no such thing!")
    failing = await add(ordering_key="k", error="not now")
    behind = await add(ordering_key="k")
    held = [await add("DEAD", ordering_key="dead"), await add(ordering_key="dead")]
    soon = await add(error="not now")
    later = await add()
    not_of_the_backlog = await add(error="not now", created_at=datetime.now(UTC) + timedelta(hours=1))
    hour = "UPDATE outbox_events SET available_at = now() + interval '1 hour' WHERE id = ANY ($1)"
    await site.pool.execute(hour, [failing, later, not_of_the_backlog])
    await site.pool.execute(hour.replace("1 hour", "2 seconds"), [soon])

    async with running(site.target, site.folder / "log", *UNTIL_EMPTY, outbox_dead_key="hold") as worker:
        assert await worker.ended() == 1, worker.written

    found = {row["id"]: row["state"] for row in await site.pool.fetch("SELECT id, state FROM outbox_events")}
    assert {found[event] for event in (*published, soon)} == {"PUBLISHED"}
    assert [found[event] for event in (bad, failing, behind, *held, later)] == [
        *("DEAD", "PENDING", "PENDING", "DEAD", "PENDING", "PENDING")
    ]
    assert (
        "left: 2 due or behind an earlier event of their key, 1 waiting for their retry, 2 DEAD"
        in worker.written
    )


async def test_a_stopped_publisher_leaves_no_claim_and_tells_that_it_was_early(site: Site) -> None:
    await site.pool.execute(FILL)
    async with running(site.target, site.folder / "log", *UNTIL_EMPTY) as worker:
        await eventually(partial(site.has_claims_of, worker), what="it claims")
        worker.send(SIGTERM)
        assert await worker.ended() == 1, worker.written
    assert "run it again" in worker.written
    assert (await site.states()).keys() <= {"PENDING", "PUBLISHED"}


@pytest.mark.crash
async def test_a_killed_one_of_two_beside_a_worker_doubles_and_loses_nothing(site: Site) -> None:
    await site.pool.execute(FILL)
    start = partial(running, site.target)
    async with start(site.folder / "killed", *UNTIL_EMPTY) as killed:
        await eventually(partial(site.has_claims_of, killed), what="it claims")
        killed.send(SIGKILL)
        await killed.ended()
    async with (
        start(site.folder / "first", *UNTIL_EMPTY) as first,
        start(site.folder / "second", *UNTIL_EMPTY) as second,
        start(site.folder / "worker", consumers=""),
    ):
        assert [await first.ended(within=120), await second.ended(within=120)] == [0, 0], first.written

    assert await site.states() == {"PUBLISHED": EVENTS}
    stored = (await api(site.broker, f"STREAM.INFO.{site.target.stream}"))["state"]["messages"]
    rows = await site.pool.fetch("SELECT ordering_key, stream_seq FROM outbox_events ORDER BY seq")
    assert stored == len({row["stream_seq"] for row in rows}) == EVENTS
    by_key = defaultdict(list)
    for row in rows:
        by_key[row["ordering_key"]].append(row["stream_seq"])
    del by_key[None]
    assert len(by_key) == KEYS / 2
    assert all(seqs == sorted(seqs) for seqs in by_key.values())


async def test_a_worker_that_publishes_no_outbox_refuses(site: Site) -> None:
    settings = {"outbox_enabled": "false", "handler_url": "http://127.0.0.1:1"}
    async with running(site.target, site.folder / "log", *UNTIL_EMPTY, **settings) as worker:
        assert await worker.ended() == 2
    assert worker.written == "--until-empty publishes the outbox: set SEA_MQ_OUTBOX_ENABLED=true\n"
