"""How soon work moves again after a worker is killed under load, and what that costs.

The long tests print the table of 50 kills each way. The short one kills three times and measures nothing.
"""

import asyncio
import dataclasses
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import asyncpg
import pytest

from tests.support.handlers import Call
from tests.support.jetstream import SECOND
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

KILLS = 50
GOAL_SECONDS = 2.0
MOVES_WITHIN_SECONDS = 50.0
"""Below the leases, and far above what a busy machine takes."""
ACK_WAIT_SECONDS = 6
"""A message that was fetched and not yet recorded waits for it."""
EVERY_SECONDS = 0.02
KEYS = 50
CALL_SECONDS = 0.05
SETTINGS: dict[str, Any] = {
    "outbox_publish_timeout_seconds": 10,
    "database_timeout_seconds": 5,
    "outbox_lease_seconds": 60,
    "inbox_lease_seconds": 60,
    "handler_timeout_seconds": 5,
}
LEFT_EVENTS = "SELECT id FROM outbox_events WHERE split_part(claimed_by, '#', 1) = $1"
LEFT_MESSAGES = "SELECT message_id FROM inbox_messages WHERE split_part(locked_by, '#', 1) = $1"
EVENTS_DONE = (
    "SELECT max(published_at), count(*) FROM outbox_events WHERE id = ANY ($1) AND state = 'PUBLISHED'"
)
MESSAGES_DONE = (
    "SELECT max(processed_at), count(*) FROM inbox_messages"
    " WHERE message_id = ANY ($1) AND processed_at IS NOT NULL"
)
FIRST_EVENT = "SELECT min(published_at) FROM outbox_events WHERE published_at > $1"


@dataclass
class Table:
    """Seconds from each kill until all that the killed worker had claimed was done."""

    events: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def lines(self) -> str:
        return "\n".join(
            f"{name:>28}: {len(found)} kills, p50 {_at(found, 0.5):.2f} s, p99 {_at(found, 0.99):.2f} s,"
            f" worst {max(found):.2f} s"
            for name, found in (
                ("its claimed events", self.events),
                ("its leased messages", self.messages),
                ("first event of anybody", self.first),
            )
            if found
        )


def _at(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


@asynccontextmanager
async def traffic(at: Site) -> AsyncIterator[None]:
    """Commit events with and without a key and send messages for the length of a block."""
    over = asyncio.Event()

    async def produce() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            await at.commit(2)
            await at.commit(2, ordering_key=f"k{number % KEYS}")
            await at.send(2)
            await asyncio.sleep(EVERY_SECONDS)

    producing = asyncio.create_task(produce())
    try:
        yield
    finally:
        over.set()
        await producing


async def measure(at: Site, table: Table, killed: str, at_time: datetime) -> None:
    """Wait until all that the killed worker left is done, and note how long it took."""
    for left, done, seconds in (
        (LEFT_EVENTS, EVENTS_DONE, table.events),
        (LEFT_MESSAGES, MESSAGES_DONE, table.messages),
    ):
        ids = [row[0] for row in await at.database.fetch(left, killed)]

        async def all_done(ids: list[Any] = ids, done: str = done) -> datetime | None:
            last, count = await at.database.fetchrow(done, ids)
            found: datetime | None = last if count == len(ids) else None
            return found

        if ids:
            last = await eventually(all_done, within=MOVES_WITHIN_SECONDS, what=f"{killed}'s work is done")
            seconds.append((last - at_time).total_seconds())
    first = await eventually(
        partial(at.database.fetchval, FIRST_EVENT, at_time), within=MOVES_WITHIN_SECONDS, what="events move"
    )
    table.first.append((first - at_time).total_seconds())


async def kills(made: Site, count: int, *, standby: bool) -> Table:
    """Kill a worker under load again and again; another stands by, or it is started again at once."""
    table, effect = Table(), made.effects.take

    async def slowly(call: Call, writer: Any) -> None:
        await asyncio.sleep(CALL_SECONDS)
        await effect(call, writer)

    made.handler.default = slowly
    watch = await asyncpg.connect(made.dsn)
    async with AsyncExitStack() as stack, traffic(made):
        stack.push_async_callback(watch.close)
        at = dataclasses.replace(made, database=watch)
        names = [f"w{number}" for number in range(count + 1 + standby)]
        running = []
        for name in names[: 1 + standby]:
            running.append((name, await stack.enter_async_context(made.worker(name=name))))
            await running[-1][1].ready()
        for name in names[1 + standby :]:
            killed, worker = running.pop(0)
            at_time = await watch.fetchval("SELECT clock_timestamp()")
            worker.send(signal.SIGKILL)
            await worker.ended()
            running.append((name, await stack.enter_async_context(made.worker(name=name))))
            await measure(at, table, killed, at_time)
            await running[-1][1].ready()
    return table


@pytest.fixture
async def made(site_with: SiteWith) -> AsyncIterator[Site]:
    async with site_with(consumer={"ack_wait": ACK_WAIT_SECONDS * SECOND}, **SETTINGS) as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("standby", [True, False], ids=["another stands by", "it is started again"])
async def test_fifty_kills_cost_two_seconds_each_and_nothing_else(made: Site, *, standby: bool) -> None:
    table = await kills(made, KILLS, standby=standby)
    async with made.worker(name="last"):
        await made.quiet(within=120.0)
    await made.audit()
    repeated = sum(made.effects.calls.values()) - len(made.effects.calls)
    sys.stdout.write(f"\n{table.lines()}\n  lost 0, doubled 0, out of order 0; repeated calls {repeated}\n")
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert all(_at(found, 0.99) < GOAL_SECONDS for found in (table.events, table.messages, table.first))


@pytest.mark.fault("P06")
@pytest.mark.fault("N07")
@pytest.mark.clause("event-model: a crash loses no event and leads to no second effect")
@pytest.mark.clause("POL-047-003")
async def test_work_of_killed_workers_moves_on_long_before_its_leases_end(made: Site) -> None:
    table = await kills(made, 2, standby=True)
    async with made.worker(name="last"):
        await made.quiet(within=60.0)
    await made.audit()
    assert len(table.first) == 2
