"""An outbox in partitions, for tests that need one."""

import itertools
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.producer import uuid7
from sea_mq_worker.resources import resource_folder
from tests.support.servers import database_connection

SCRIPT = resource_folder("sql") / "partitions.sql"
VERSION_MIN = 17
DAY = timedelta(days=1)


async def partition_outbox(dsn: str, *, schema: str = "public") -> None:
    """Divide the outbox as an operator does; skips the test where the server cannot."""
    async with database_connection(dsn, server_settings={"search_path": f"{schema}, pg_temp"}) as connection:
        skip_without_partitions(connection)
        async with connection.transaction():
            await connection.execute(SCRIPT.read_text())


def skip_without_partitions(connection: asyncpg.Connection) -> None:
    if connection.get_server_version().major < VERSION_MIN:
        pytest.skip(f"an outbox in partitions needs PostgreSQL {VERSION_MIN}")


def ids_of_all_partitions() -> Callable[[], UUID]:
    """Return a maker of ids that belong to partitions in turn: of the past, of a day ahead, of no day."""
    ahead = 3 * 86_400_000 << 80
    makers = (
        uuid7,
        lambda: UUID(int=uuid7().int + ahead),
        lambda: UUID(int=uuid.uuid4().int | 1 << 127),
    )
    turn = itertools.cycle(makers)

    def new_id() -> UUID:
        return next(turn)()

    return new_id


def midnight() -> datetime:
    """Return when today began."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def id_at(moment: datetime) -> UUID:
    """Return the lowest UUIDv7 of a moment."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def id_of_day(days_ago: int) -> UUID:
    """Make an id as a producer made it about noon of a day that is over."""
    return UUID(int=id_at(midnight() - (days_ago - 0.5) * DAY).int + secrets.randbits(62))


def past_name(days_ago: int) -> str:
    """Return the name of the partition of a day that is over."""
    return f"outbox_events_{midnight() - days_ago * DAY:%Y%m%d}"


async def past_partition(connection: asyncpg.Connection, *, days_ago: int) -> str:
    """Make a partition of a day that is over, as one has who divided the outbox long ago; return its name.

    The old table, which has these days, must hold nothing.
    """
    await connection.execute("DROP TABLE IF EXISTS outbox_events_before")
    day = midnight() - days_ago * DAY
    bounds = f"FOR VALUES FROM ('{id_at(day)}') TO ('{id_at(day + DAY)}')"
    add = "SELECT outbox_add_partition($1, $2, 'outbox_events_default')"
    await connection.execute(add, past_name(days_ago), bounds)
    return past_name(days_ago)
