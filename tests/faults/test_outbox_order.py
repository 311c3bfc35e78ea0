"""An ordering key's events reach the stream in their order, and no key waits for another's trouble."""

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.faults.test_outbox_crashes import HEIR
from tests.support.servers import database_connection
from tests.support.site import Site
from tests.support.waiting import eventually

IN_BOTH_MODES = pytest.mark.parametrize("mode", ["auto", "atomic"])
EVENTS = 2000
KEYS = 50
KILLS = 4
TWO_OWNERS = (
    "SELECT ordering_key FROM outbox_events WHERE state = 'CLAIMED'"
    " GROUP BY ordering_key HAVING count(DISTINCT left(claimed_by, -8)) > 1"
)
LATEST_OWNER = (
    "SELECT claimed_by FROM outbox_events"
    " WHERE state = 'CLAIMED' AND claimed_at > now() - interval '0.1 s' ORDER BY claimed_at DESC LIMIT 1"
)


async def states(site: Site, *ids: str) -> list[str]:
    return [(await site.row(event_id))["state"] for event_id in ids]


@IN_BOTH_MODES
@pytest.mark.fault("P28")
async def test_a_failing_event_holds_the_later_ones_of_its_key_and_no_other(shared: Site, mode: str) -> None:
    await shared.change_stream(max_msgs_per_subject=1, discard_new_per_subject=True)
    async with shared.worker(outbox_publish_mode=mode) as worker:
        await worker.ready()
        await shared.commit(event_type="full.made", ordering_key="k")
        await shared.published()
        [failing] = await shared.commit(event_type="full.made", ordering_key="k")
        [behind] = await shared.commit(event_type="free.made", ordering_key="k")
        [beside] = await shared.commit(event_type="open.made", ordering_key="k2")
        await eventually(lambda: states(shared, beside), until=lambda found: found == ["PUBLISHED"])
        await eventually(lambda: shared.row(failing), until=lambda row: row["publish_attempts"] > 2)
        assert "PUBLISHED" not in await states(shared, failing, behind)
        await shared.change_stream(max_msgs_per_subject=-1, discard_new_per_subject=False)
        await shared.published()
    await shared.audit()


@pytest.mark.parametrize("dead_key", ["continue", "hold"])
@pytest.mark.fault("P28")
async def test_events_after_a_dead_one_of_their_key_continue_or_wait_by_the_setting(
    shared: Site, dead_key: str
) -> None:
    async with shared.worker(outbox_dead_key=dead_key) as worker:
        await worker.ready()
        first = await shared.commit(ordering_key="k")
        [dead] = await shared.commit(payload={"far": "x" * 2**20}, ordering_key="k")
        [behind] = await shared.commit(ordering_key="k")
        beside = await shared.commit(3, ordering_key="k2")
        await eventually(
            lambda: states(shared, *first, *beside), until=lambda found: found == 4 * ["PUBLISHED"]
        )
        if dead_key == "hold":
            await asyncio.sleep(1)  # twice the longest wait between claims
            assert await states(shared, dead, behind) == ["DEAD", "PENDING"]
            await shared.database.execute("DELETE FROM outbox_events WHERE id = $1", dead)
        await shared.published()
    await shared.audit(dead=frozenset() if dead_key == "hold" else frozenset({dead}))


@pytest.mark.clause("event-model-15")
@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.fault("P29")
async def test_four_workers_that_are_killed_at_random_keep_every_keys_order(shared: Site) -> None:
    chance = random.Random(47)
    async with AsyncExitStack() as stack:

        async def start(number: int) -> None:
            name, mode = f"w{number}", ("auto", "atomic")[number % 2]
            worker = shared.worker(name=name, outbox_publish_mode=mode, outbox_batch_max=20, **HEIR)
            workers[name] = await stack.enter_async_context(worker)

        async def claimant() -> str:
            """Name a living worker that has just claimed events: one serves the keys, the others stand by."""
            name = str(await claims.fetchval(LATEST_OWNER) or "").partition("#")[0]
            return name if name in workers else ""

        workers: dict[str, Any] = {}
        claims = await stack.enter_async_context(database_connection(shared.dsn))
        for number in range(4):
            await start(number)
        for worker in workers.values():
            await worker.ready()
        watching = asyncio.create_task(no_key_has_two_owners(shared))
        for kill in range(KILLS):
            committing = asyncio.create_task(commit_shuffled(shared, EVENTS // KILLS, chance))
            name = await eventually(claimant, what="a worker has claimed events")
            workers.pop(name).send(signal.SIGKILL)
            await committing
            await start(4 + kill)
        await shared.published()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    assert await shared.database.fetchval("SELECT sum(failures) FROM outbox_events") > 0
    await shared.audit()


async def commit_shuffled(site: Site, count: int, chance: random.Random) -> None:
    for _ in range(count // 10):
        await site.commit(10, ordering_key=f"key-{chance.randrange(KEYS)}")


async def no_key_has_two_owners(site: Site) -> None:
    """Look at the claims again and again, until cancelled."""
    async with database_connection(site.dsn) as connection:
        while True:
            assert await connection.fetch(TWO_OWNERS) == []
            await asyncio.sleep(0.01)
