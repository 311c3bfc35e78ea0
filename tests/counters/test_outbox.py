"""What an event costs in statements, bytes of log, messages and calls, and an idle worker in statements."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.counters.budgets import BUDGETS, check, unbatched_statements
from tests.counters.meters import Meters, Statements, counted
from tests.support.waiting import eventually
from tests.support.worker import running

EVENTS = 5000
BATCH = 50
"""Small, so that a statement more for each shows among those of a start."""
EVENTS_OF_PROFILE = 2000
PACED, PACED_PER_SECOND = 200, 100
UNPUBLISHED = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("per_key", "workers"),
    [
        pytest.param(0, 1, id="unkeyed"),
        pytest.param(10, 1, id="ten events to a key"),
        pytest.param(10, 3, id="and two workers that stand by"),
    ],
)
async def test_a_drain_asks_postgresql_and_the_broker_no_more_than_it_must(
    metered: Meters, tmp_path: Path, per_key: int, workers: int
) -> None:
    await metered.commit(EVENTS, per_key=per_key)
    log_before, began = await metered.log_bytes(), time.monotonic()
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(
                running(metered.target, tmp_path / f"log{n}", consumers="", outbox_batch_max=BATCH)
            )
            for n in range(workers)
        ]
        await eventually(metered.stored, until=lambda found: found == EVENTS, within=60)
        for worker in started:
            await worker.ready()
            worker.send(signal.SIGTERM)
        assert [await worker.ended() for worker in started] == [0] * workers
    elsewhere = workers * unbatched_statements(seconds=time.monotonic() - began)
    log, statements = await metered.log_bytes() - log_before, await metered.statements()
    traffic = await metered.traffic("outbox")
    assert await metered.database.fetchval(UNPUBLISHED) == 0
    check(
        "statements to PostgreSQL per batch of events",
        (statements.total() - elsewhere) / (EVENTS / BATCH),
        statements,
    )
    check("bytes of write-ahead log per event, without its insert", log / EVENTS)
    check("messages to and from the broker per event, in batches of 50", traffic / EVENTS)


@pytest.mark.parametrize("per_key", [0, 10], ids=["unkeyed", "ten events to a key"])
async def test_an_event_takes_no_more_calls_of_functions(
    metered: Meters, tmp_path: Path, per_key: int
) -> None:
    async with counted(metered, tmp_path, consumers="") as counter:
        await counter.begin()
        await metered.commit(EVENTS_OF_PROFILE, per_key=per_key)
        await eventually(lambda: all_published(metered), within=60)
        calls = await counter.end()
    check("calls of functions per event, Python's and C's", calls / EVENTS_OF_PROFILE)


async def test_events_that_come_one_by_one_take_hardly_more_than_a_claim_each(
    metered: Meters, tmp_path: Path
) -> None:
    async with running(metered.target, tmp_path / "log", consumers="") as worker:
        await worker.ready()
        await metered.commit(1)
        await eventually(lambda: all_published(metered), within=60)
        before, began = await metered.statements(), asyncio.get_running_loop().time()
        for number in range(PACED):
            await asyncio.sleep(began + number / PACED_PER_SECOND - asyncio.get_running_loop().time())
            await metered.commit_one()
        await eventually(lambda: all_published(metered), within=60)
        spent = (await metered.statements()).since(before)
    elsewhere = BUDGETS["statements per second of an idle worker"][0] * (
        asyncio.get_running_loop().time() - began
    )
    check(
        "statements to PostgreSQL per event, at 100 single events a second",
        (spent.total() - elsewhere) / PACED,
        spent,
    )


async def all_published(metered: Meters) -> bool:
    return not await metered.database.fetchval(UNPUBLISHED)


LOOKS_UNTIL_SLOW = 11
"""The waits of an idle lane double from 5 ms on to two seconds."""
LOOKS = 2
OWN = ("sea_mq_shares",)
"""What a worker does at each look for keyed events besides."""
LANES = (
    "ordering_key IS NULL AND o.publish_error IS NULL\n       AND o.state = $",
    "fresh_heads",
)
"""What the claim of each lane holds and no other statement does."""
SAMPLE_SECONDS = 15


@pytest.mark.fault("P44")
@pytest.mark.asyncio(loop_scope="session")
async def test_an_idle_worker_is_nearly_silent(metered: Meters, tmp_path: Path) -> None:
    async with running(metered.target, tmp_path / "log") as worker:
        await worker.ready()
        before, began = await looked(metered, LOOKS_UNTIL_SLOW)
        after, ended = await looked(metered, max(map(before.holding, LANES)) + LOOKS)
    spent, seconds = after.since(before), ended - began
    in_a_span_of_no_length = len(LANES)
    looks = sum(map(spent.holding, LANES)) - in_a_span_of_no_length
    check("polls for events per second of an idle worker", looks / seconds, spent)
    others = [calls for text, calls in spent.items() if not any(lane in text for lane in LANES + OWN)]
    samples = 1 + seconds // SAMPLE_SECONDS
    check("runs of any other statement in 15 s of an idle worker", max(others, default=0) / samples, spent)
    check("all of these in 15 s", sum(others) / samples, spent)


async def looked(metered: Meters, times: int) -> tuple[Statements, float]:
    """Wait until each lane has looked so often; return all statements so far, and when that was."""

    async def found() -> Statements | None:
        statements = await metered.statements()
        return statements if all(statements.holding(lane) >= times for lane in LANES) else None

    statements = await eventually(found, within=60, what=f"each lane has looked {times} times")
    return statements, time.monotonic()
