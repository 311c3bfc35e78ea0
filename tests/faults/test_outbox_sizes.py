"""Large events neither fill the worker's memory nor keep others waiting."""

from pathlib import Path

import pytest

from sea_mq_worker.adapters.nats.connection import api
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

MIB = 2**20
LIMIT = 130 * MIB
"""Of docs/configuration.md for the outbound side alone."""
LARGE = 950_000
INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', to_jsonb(repeat('x', $2::int))
  FROM generate_series(1, $1::int)
"""
PUBLISHED = "SELECT count(*) FROM outbox_events WHERE state = 'PUBLISHED'"
DEAD = "SELECT publish_error FROM outbox_events WHERE state = 'DEAD'"


@pytest.mark.fault("P46")
async def test_a_backlog_of_large_events_takes_no_more_memory_than_the_room_for_claims(shared: Site) -> None:
    await drained_within_its_limit(shared, 60)


@pytest.mark.long
@pytest.mark.fault("P46")
async def test_a_long_backlog_of_large_events_takes_no_more_memory_than_a_short_one(shared: Site) -> None:
    await drained_within_its_limit(shared, 500)


async def drained_within_its_limit(site: Site, count: int) -> None:
    await widen(site)
    await site.database.execute(INSERT, count, LARGE)
    async with site.worker(outbox_publish_timeout_seconds=10, outbox_lease_seconds=60) as worker:
        await site.published(within=120)
        peak = _peak_bytes(worker)
    assert await site.database.fetchval(PUBLISHED) == count
    assert peak < LIMIT, f"{peak / MIB:.0f} MiB"


@pytest.mark.fault("P49")
async def test_an_event_of_200_mb_is_dead_within_seconds_and_harms_nobody(shared: Site) -> None:
    await shared.database.execute(INSERT, 1, 200_000_000)
    good = await shared.commit(100)
    async with shared.worker() as worker:
        await shared.published(within=10)
        [dead] = await shared.database.fetch(DEAD)
        assert dead["publish_error"].startswith("2000000")
        assert "max_payload of 1048576" in dead["publish_error"]
        assert set(await shared.copies()) == set(good)
        assert _peak_bytes(worker) < 120 * MIB
        await eventually(lambda: "event_buried" in worker.events())


async def widen(site: Site) -> None:
    """Let the stream hold all of it."""
    info = await api(site.broker, f"STREAM.INFO.{site.target.stream}")
    await api(site.broker, f"STREAM.UPDATE.{site.target.stream}", info["config"] | {"max_bytes": 2**30})


def _peak_bytes(worker: WorkerProcess) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024
