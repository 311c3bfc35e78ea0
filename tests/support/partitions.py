"""An outbox in partitions, for tests that need one."""

import itertools
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.producer import uuid7
from sea_mq_worker.resources import resource_folder

SCRIPT = resource_folder("sql") / "partitions.sql"
VERSION_MIN = 17
_TODAY = datetime.now(UTC).date()


async def partition_outbox(dsn: str, *, schema: str = "public") -> None:
    """Divide the outbox as an operator does; skips the test where the server cannot."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": f"{schema}, pg_temp"})
    try:
        if connection.get_server_version().major < VERSION_MIN:
            pytest.skip(f"an outbox in partitions needs PostgreSQL {VERSION_MIN}")
        async with connection.transaction():
            await connection.execute(SCRIPT.read_text())
    finally:
        await connection.close()


def ids_of_all_partitions() -> Callable[[], uuid.UUID]:
    """Return a maker of ids that belong to partitions in turn: of the past, of a day ahead, of no day."""
    ahead = 3 * 86_400_000 << 80
    makers = (
        uuid7,
        lambda: uuid.UUID(int=uuid7().int + ahead),
        lambda: uuid.UUID(int=uuid.uuid4().int | 1 << 127),
    )
    turn = itertools.cycle(makers)

    def new_id() -> uuid.UUID:
        return next(turn)()

    return new_id


async def past_partition(connection: asyncpg.Connection, *, days_ago: int) -> str:
    """Make a partition of a day that is over, as one has who divided the outbox long ago; return its name.

    The old table, which has these days, must hold nothing.
    """
    await connection.execute("DROP TABLE IF EXISTS outbox_events_before")
    day, name = _TODAY - timedelta(days=days_ago), past_name(days_ago)
    bounds = f"FOR VALUES FROM ('{id_at(_midnight(day))}') TO ('{id_at(_midnight(day + timedelta(days=1)))}')"
    await connection.execute("SELECT outbox_add_partition($1, $2, 'outbox_events_default')", name, bounds)
    return name


def past_name(days_ago: int) -> str:
    """Return the name of the partition of a day that is over."""
    return f"outbox_events_{_TODAY - timedelta(days=days_ago):%Y%m%d}"


def id_of_day(days_ago: int) -> UUID:
    """Make an id as a producer made it about noon of a day that is over."""
    noon = _midnight(_TODAY - timedelta(days=days_ago)) + timedelta(hours=12)
    return UUID(int=id_at(noon).int + secrets.randbits(62))


def id_at(moment: datetime) -> UUID:
    """Return the lowest UUIDv7 of a moment."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
