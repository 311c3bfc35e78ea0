"""The claims of a killed worker are taken over long before its leases end."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from tests.faults.test_database import reconnected
from tests.faults.test_outbox_crashes import SESSIONS_ENDED, has_come_to_claimed
from tests.support.jetstream import SECOND
from tests.support.processes import frozen
from tests.support.servers import database_connection
from tests.support.site import SiteWith
from tests.support.waiting import eventually

LONG: Mapping[str, Any] = MappingProxyType({
    "outbox_publish_timeout_seconds": 20,
    "database_timeout_seconds": 5,
    "outbox_lease_seconds": 120,
    "inbox_lease_seconds": 120,
    "handler_timeout_seconds": 20,
})  # fmt: skip
"""Leases that no test waits for."""
PATIENT = MappingProxyType({"ack_wait": 120 * SECOND})


UNTIL_TAKEN_OVER_SECONDS = 2.5
"""Longer than the two looks that a takeover takes."""


async def restart(server: EmbeddedPostgres) -> None:
    await server.stop()
    await server.start()


async def crash(server: EmbeddedPostgres) -> None:
    await server.kill()
    await server.start()


async def crash_one_backend(server: EmbeddedPostgres) -> None:
    """The server ends all sessions and recovers, without being started again."""
    killed, ended = [await asyncpg.connect(server.dsn) for _ in range(2)]
    os.kill(await killed.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
    await eventually(ended.is_closed, what="the server has ended all sessions")

    async def has_recovered() -> bool:
        try:
            await (await asyncpg.connect(server.dsn)).close()
        except (asyncpg.PostgresError, OSError):
            return False
        return True

    await eventually(has_recovered, what="the server has recovered")


async def end_all_sessions(server: EmbeddedPostgres, *, only: str = "true") -> None:
    async with database_connection(server.dsn) as connection:
        await connection.execute(f"{SESSIONS_ENDED} AND {only}")


async def end_lock_sessions(server: EmbeddedPostgres) -> None:
    await end_all_sessions(server, only="application_name = 'sea_mq_worker session'")


@pytest.mark.fault("P08")
@pytest.mark.parametrize(
    "trouble",
    [
        *(
            pytest.param(trouble, marks=pytest.mark.long)
            for trouble in (restart, crash, end_all_sessions, end_lock_sessions)
        ),
        crash_one_backend,
    ],
)
async def test_a_living_worker_whose_sessions_end_keeps_its_leases(
    own_postgres: EmbeddedPostgres,
    own_nats: EmbeddedNats,
    site_with: SiteWith,
    trouble: Callable[[EmbeddedPostgres], Awaitable[None]],
) -> None:
    """Each of two workers could take over from the other while both hold claims of a frozen broker."""
    one_by_one = {"outbox_batch_max": 1, "outbox_batches_max": 1}
    both = {"dsn": own_postgres.dsn, "nats_url": own_nats.url}
    async with (
        site_with(**both, consumer=PATIENT, **LONG) as made,
        made.worker(name="one", **one_by_one) as one,
        made.worker(name="other", **one_by_one) as other,
    ):
        for worker in (one, other):
            await worker.ready()
        with frozen(own_nats.pid):
            ids = await made.commit(2)
            for event_id in ids:
                await has_come_to_claimed(made, event_id)
            await trouble(own_postgres)
            async with reconnected(made) as here:
                await asyncio.sleep(UNTIL_TAKEN_OVER_SECONDS)
                assert {(await here.row(event_id))["state"] for event_id in ids} == {"CLAIMED"}
        async with reconnected(made) as here:
            await here.published()
            await here.audit()
            assert {(await here.row(event_id))["failures"] for event_id in ids} == {0}
        for worker in (one, other):
            assert "worker_taken_over" not in worker.events()
