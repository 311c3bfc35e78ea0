"""``run --until-empty`` publishes a backlog beside running workers, and ends."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from tests.support.rows import add_event
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

EVENTS = 20_000
KEYS = 200
FILL = f"""
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', jsonb_build_object('n', n),
       CASE WHEN n % 2 = 0 THEN 'key-' || n % {KEYS} END
  FROM generate_series(1, {EVENTS}) n"""
CLAIMED = "SELECT count(*) > 0 FROM outbox_events WHERE claimed_by LIKE '%-' || $1 || '-%'"
UNTIL_EMPTY = ("run", "--until-empty")
STATES = "SELECT state, count(*) FROM outbox_events GROUP BY 1"

outbound = partial(Site.worker, outbox_batch_max=100, handler_url="", consumers="")


async def test_what_nobody_can_publish_now_is_left_and_told(shared: Site) -> None:
    add = partial(add_event, shared.database)
    published = [await add(), await add(ordering_key="free"), await add(ordering_key="free")]
    bad = await add(event_type="no such thing!")
    failing = await add(ordering_key="k", error="not now")
    behind = await add(ordering_key="k")
    held = [await add("DEAD", ordering_key="dead"), await add(ordering_key="dead")]
    soon = await add(error="not now")
    later = await add()
    not_of_the_backlog = await add(error="not now", created_at=datetime.now(UTC) + timedelta(hours=1))
    hour = "UPDATE outbox_events SET available_at = now() + interval '1 hour' WHERE id = ANY ($1)"
    await shared.database.execute(hour, [failing, later, not_of_the_backlog])
    await shared.database.execute(hour.replace("1 hour", "2 seconds"), [soon])

    async with outbound(shared, *UNTIL_EMPTY, outbox_dead_key="hold") as worker:
        assert await worker.ended() == 1, worker.written

    rows = await shared.database.fetch("SELECT id, state FROM outbox_events")
    found = {row["id"]: row["state"] for row in rows}
    assert {found[event] for event in (*published, soon)} == {"PUBLISHED"}
    assert [found[event] for event in (bad, failing, behind, *held, later)] == [
        *("DEAD", "PENDING", "PENDING", "DEAD", "PENDING", "PENDING")
    ]
    left = "left: 2 due or behind an earlier event of their key, 1 waiting for their retry, 2 DEAD"
    assert left in worker.written


async def has_claims(site: Site, worker: WorkerProcess) -> None:
    await eventually(partial(site.database.fetchval, CLAIMED, str(worker.process.pid)), what="it claims")


async def test_a_stopped_publisher_leaves_no_claim_and_tells_that_it_was_early(shared: Site) -> None:
    await shared.database.execute(FILL)
    async with outbound(shared, *UNTIL_EMPTY) as worker:
        await has_claims(shared, worker)
        worker.process.terminate()
        assert await worker.ended() == 1, worker.written
    assert "run it again" in worker.written
    assert dict(await shared.database.fetch(STATES)).keys() <= {"PENDING", "PUBLISHED"}


@pytest.mark.crash
async def test_a_killed_one_of_two_beside_a_worker_doubles_and_loses_nothing(shared: Site) -> None:
    await shared.database.execute(FILL)
    async with outbound(shared, *UNTIL_EMPTY, name="killed") as killed:
        await has_claims(shared, killed)
        await killed.killed()
    async with (
        outbound(shared, *UNTIL_EMPTY, name="first") as first,
        outbound(shared, *UNTIL_EMPTY, name="second") as second,
        outbound(shared),
    ):
        assert [await first.ended(within=120), await second.ended(within=120)] == [0, 0], first.written

    assert dict(await shared.database.fetch(STATES)) == {"PUBLISHED": EVENTS}
    rows = await shared.database.fetch("SELECT ordering_key, stream_seq FROM outbox_events ORDER BY seq")
    assert (await shared.stream())["state"]["messages"] == len({row["stream_seq"] for row in rows}) == EVENTS
    by_key = defaultdict(list)
    for row in rows:
        by_key[row["ordering_key"]].append(row["stream_seq"])
    del by_key[None]
    assert len(by_key) == KEYS / 2
    assert all(seqs == sorted(seqs) for seqs in by_key.values())


async def test_a_worker_that_publishes_no_outbox_refuses(shared: Site) -> None:
    async with shared.worker(*UNTIL_EMPTY, outbox_enabled="false") as worker:
        assert await worker.ended() == 2
    assert worker.written == "--until-empty publishes the outbox: set SEA_MQ_OUTBOX_ENABLED=true\n"
