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
from tests.support.servers import database_connection

SCRIPT = resource_folder("sql") / "partitions.sql"
VERSION_MIN = 17
DAY = timedelta(days=1)
INSERT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " VALUES ($1, 'order', 'o-1', 'order.created', '{}')"
)
PUBLISH = """
UPDATE outbox_events SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'w', publish_attempts = 1
 WHERE state = 'PENDING';
UPDATE outbox_events SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = now()
 WHERE state = 'CLAIMED';
"""
SHAPE = """
SELECT 'column ' || attnum || attname || format_type(atttypid, atttypmod) || attnotnull
       || attidentity::text || attgenerated::text || coalesce(pg_get_expr(adbin, adrelid), '')
  FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
 WHERE attrelid = $1::regclass AND attnum > 0
UNION ALL SELECT 'index ' || replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') FROM pg_index
 WHERE indrelid = $1::regclass
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger
 WHERE tgrelid = $1::regclass AND NOT tgisinternal
UNION ALL SELECT 'constraint ' || conname || pg_get_constraintdef(oid) FROM pg_constraint
 WHERE conrelid = $1::regclass
UNION ALL SELECT 'comment ' || objsubid || description FROM pg_description
 WHERE classoid = 'pg_class'::regclass AND objoid = $1::regclass
UNION ALL SELECT 'comment ' || tgname || obj_description(oid, 'pg_trigger') FROM pg_trigger
 WHERE tgrelid = $1::regclass AND NOT tgisinternal AND obj_description(oid, 'pg_trigger') IS NOT NULL
UNION ALL SELECT 'comment ' || indexrelid::regclass || obj_description(indexrelid, 'pg_class') FROM pg_index
 WHERE indrelid = $1::regclass AND obj_description(indexrelid, 'pg_class') IS NOT NULL
UNION ALL SELECT 'right ' || x::text FROM pg_class, aclexplode(relacl) x WHERE oid = $1::regclass
UNION ALL SELECT 'right ' || attname || x::text FROM pg_attribute, aclexplode(attacl) x
 WHERE attrelid = $1::regclass
 ORDER BY 1"""
_TODAY = datetime.now(UTC).date()


async def partition_outbox(dsn: str, *, schema: str = "public") -> None:
    """Divide the outbox as an operator does; skips the test where the server cannot."""
    async with database_connection(dsn, server_settings={"search_path": f"{schema}, pg_temp"}) as connection:
        if connection.get_server_version().major < VERSION_MIN:
            pytest.skip(f"an outbox in partitions needs PostgreSQL {VERSION_MIN}")
        async with connection.transaction():
            await connection.execute(SCRIPT.read_text())


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


def midnight() -> datetime:
    """Return when today began."""
    return _midnight(datetime.now(UTC).date())


async def add(connection: asyncpg.Connection, at: datetime) -> str:
    """Add an event with an id of that time; return the table that holds it."""
    event_id = id_at(at)
    await connection.execute(INSERT, event_id)
    return str(
        await connection.fetchval("SELECT tableoid::regclass FROM outbox_events WHERE id = $1", event_id)
    )


async def publish(connection: asyncpg.Connection) -> None:
    await connection.execute(PUBLISH)


async def partitions(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("SELECT partition FROM outbox_partitions()")]


async def shape(connection: asyncpg.Connection, table: str) -> list[str]:
    """Describe a table without parentheses, which the server sets in its own way."""
    rows = await connection.fetch(SHAPE, table)
    return sorted(row[0].replace(table, "").replace("(", "").replace(")", "") for row in rows)


async def drop(connection: asyncpg.Connection, partition: str, before: datetime) -> tuple[bool, str | None]:
    row = await connection.fetchrow("SELECT * FROM outbox_drop_partition($1, $2)", partition, before)
    return row["dropped"], row["reason"]
