"""PostgresWorkerSession: a worker is gone when none of its connections is left, and at no other time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.ports import OtherSession
from sea_mq_worker.postgres.sessions import PostgresWorkerSession
from tests.support.proxy import proxied
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.waiting import eventually

OWN_CONNECTION = "application_name = 'sea_mq_worker session'"
END = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND "


@dataclass(frozen=True, slots=True)
class Worker:
    """A session, a pool that has joined it, and what was reported of it."""

    session: PostgresWorkerSession
    pool: asyncpg.Pool
    reported: Sequence[str]

    async def die(self) -> None:
        await self.session.close()
        self.pool.terminate()

    async def sees(self, other: "Worker") -> OtherSession | None:
        return next((one for one in await self.session.others() if one.session == other.session.id), None)

    async def sees_gone(self, other: "Worker") -> bool:
        seen = await self.sees(other)
        return seen is not None and seen.is_gone

    async def holds(self) -> bool:
        try:
            await self.session.others()
        except StoreUnavailableError:
            return False
        return True


@asynccontextmanager
async def worker(dsn: str, name: str) -> AsyncIterator[Worker]:
    reported: list[str] = []
    session = PostgresWorkerSession(
        dsn=dsn,
        schema="public",
        worker=name,
        sides=["outbox"],
        silent_seconds=60.0,
        on_event=lambda event, _: reported.append(event),
    )
    await session.start()
    async with opened(dsn, size_max=2, join=session.join) as pool:
        try:
            yield Worker(session, pool, reported)
        finally:
            await session.close()
            pool.terminate()


@pytest.fixture
async def heir(database: Database) -> AsyncIterator[Worker]:
    async with worker(database.dsn, "heir") as made:
        yield made


async def test_a_worker_whose_own_connection_was_ended_is_not_gone_and_holds_its_lock_again(
    database: Database, heir: Worker
) -> None:
    async with worker(database.dsn, "first") as first:
        began = asyncio.get_running_loop().time()
        async with heir.pool.acquire() as connection:
            await connection.execute(END + OWN_CONNECTION + " AND pid <> pg_backend_pid()")
        await eventually(lambda: first.session.lost_since(began))
        await eventually(heir.holds)
        await eventually(first.holds)
        assert first.reported == ["session_lost"]
        assert not await heir.sees_gone(first)


async def test_a_cut_of_all_connections_is_noticed_and_healed_by_the_worker_itself(
    database: Database, heir: Worker
) -> None:
    async with proxied(database.dsn) as (proxy, dsn), worker(dsn, "first") as first:
        began = asyncio.get_running_loop().time()
        proxy.cut()
        await eventually(lambda: first.session.lost_since(began))
        await eventually(first.holds)
        assert not await heir.sees_gone(first)
        assert not first.session.lost_since(asyncio.get_running_loop().time())


async def test_a_statement_that_still_runs_keeps_its_worker_from_being_gone(
    database: Database, heir: Worker
) -> None:
    async with worker(database.dsn, "first") as first:
        running = asyncio.create_task(first.pool.execute("SELECT pg_sleep(1)"))
        await asyncio.sleep(0.2)
        await first.die()
        assert not await heir.sees_gone(first)
        await eventually(lambda: heir.sees_gone(first))
        await asyncio.gather(running, return_exceptions=True)


async def test_sessions_of_an_earlier_start_of_the_server_prove_nothing_and_are_forgotten(
    database: Database, heir: Worker
) -> None:
    rows = "SELECT count(*) FROM sea_mq_sessions"
    async with worker(database.dsn, "first") as first:
        await heir.pool.execute(
            "UPDATE sea_mq_sessions SET server_started_at = server_started_at - interval '1 hour'"
            " WHERE worker = 'first'"
        )
        assert await heir.sees(first) is None
        await first.die()
        assert await heir.sees(first) is None
        assert await heir.pool.fetchval(rows) == 2
    async with worker(database.dsn, "second") as second:
        assert await heir.pool.fetchval(rows) == 2
        assert await heir.sees(second) is not None
