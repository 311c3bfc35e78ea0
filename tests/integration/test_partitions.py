"""Partitions of the outbox, a day each: what one is, how days are made ahead, and when one goes."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from tests.support.partitions import (
    DAY,
    INSERT,
    add,
    drop,
    id_at,
    id_of_day,
    midnight,
    partitions,
    past_partition,
    publish,
    shape,
)
from tests.support.servers import Database
from tests.support.waiting import eventually

WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted)"


# --- what a partition is


async def test_an_event_is_in_the_partition_of_its_day_and_any_other_in_the_default_one(
    owner: asyncpg.Connection,
) -> None:
    day = midnight() + 3 * DAY
    name = f"outbox_events_{day:%Y%m%d}"
    assert [await add(owner, at) for at in (day, day + DAY - timedelta(milliseconds=1))] == [name, name]
    assert await add(owner, day + 99 * DAY) == "outbox_events_default"
    for _ in range(2):
        with pytest.raises(asyncpg.UniqueViolationError):
            await add(owner, day)


async def test_every_partition_is_like_every_other(owner: asyncpg.Connection) -> None:
    await owner.execute("GRANT SELECT, UPDATE (state) ON outbox_events TO pg_monitor")
    await owner.execute("SELECT outbox_make_partitions(9)")
    names = await partitions(owner)
    options = {
        row[0]
        for row in await owner.fetch("SELECT reloptions::text FROM pg_class WHERE relname = ANY ($1)", names)
    }
    assert len(options) == 1
    assert await shape(owner, names[1]) == await shape(owner, "outbox_events_default")
    rights = "SELECT has_column_privilege('pg_monitor', $1::text, 'state', 'UPDATE')"
    assert await owner.fetchval(rights, f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}")


async def test_what_a_migration_does_to_the_table_reaches_all_partitions(owner: asyncpg.Connection) -> None:
    await owner.execute("""
        ALTER TABLE outbox_events ADD COLUMN later INT DEFAULT 7, ADD CONSTRAINT chk_later CHECK (later > 0);
        CREATE INDEX idx_later ON outbox_events (later) WHERE is_open;
        CREATE TRIGGER later AFTER DELETE ON outbox_events FOR EACH ROW
            WHEN (OLD.later = 8) EXECUTE FUNCTION outbox_reject('later');
        DROP INDEX idx_outbox_correlation;
    """)
    await owner.execute("SELECT outbox_make_partitions(9)")
    made = f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}"
    assert await shape(owner, made) == await shape(owner, "outbox_events_default")
    reported = "\n".join(await shape(owner, made))
    assert ("chk_later" in reported, "btree later" in reported, "TRIGGER later" in reported) == (
        True,
        True,
        True,
    )
    assert "btree correlation_id" not in reported


async def test_a_partition_guards_its_events_by_itself(owner: asyncpg.Connection) -> None:
    name = await add(owner, midnight() + 3 * DAY)
    for statement in (
        f"TRUNCATE {name}",
        f"DELETE FROM {name}",
        f"UPDATE {name} SET event_type = 'x'",
        f"UPDATE {name} SET state = 'DEAD'",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await owner.execute(statement)


async def test_no_update_moves_an_event_to_another_day_and_changes_it_on_the_way(
    owner: asyncpg.Connection,
) -> None:
    await add(owner, midnight() + 3 * DAY)
    await publish(owner)
    before = await owner.fetchrow("SELECT * FROM outbox_events")
    for replayed in ("", ", state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0"):
        with pytest.raises(asyncpg.CheckViolationError):
            await owner.execute(
                f"UPDATE outbox_events SET payload = '[1]', id = $1{replayed}", id_at(midnight() + 5 * DAY)
            )
    assert await owner.fetchrow("SELECT * FROM outbox_events") == before


# --- days ahead


async def test_a_day_that_the_default_partition_has_events_of_stays_there(owner: asyncpg.Connection) -> None:
    await add(owner, midnight() + 8 * DAY)
    made = await owner.fetch("SELECT outbox_make_partitions(9)")
    assert [row[0] for row in made] == [f"outbox_events_{midnight() + 9 * DAY:%Y%m%d}"]


async def test_a_day_waits_for_no_producer_and_is_put_off_while_the_default_partition_is_busy(
    owner: asyncpg.Connection, database: Database
) -> None:
    producer = await asyncpg.connect(database.dsn)
    async with producer.transaction():
        await add(producer, midnight() + 3 * DAY)
        assert len(await owner.fetch("SELECT outbox_make_partitions(8)")) == 1
    async with producer.transaction():
        await producer.execute("DELETE FROM outbox_events_default")
        assert await owner.fetch("SELECT outbox_make_partitions(9)") == []
    assert len(await owner.fetch("SELECT outbox_make_partitions(9)")) == 1
    await producer.close()


async def test_none_is_made_for_which_too_large_a_default_partition_would_be_read(
    owner: asyncpg.Connection,
) -> None:
    await add(owner, midnight() + 99 * DAY)
    assert await owner.fetch("SELECT outbox_make_partitions(9, 8000)") == []
    assert len(await owner.fetch("SELECT outbox_make_partitions(9, 9000)")) == 2


# --- when a partition goes


async def test_a_partition_whose_events_are_published_and_old_is_dropped(owner: asyncpg.Connection) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    await publish(owner)
    row = await owner.fetchrow("SELECT * FROM outbox_drop_partition($1, $2)", name, day + DAY)
    assert (row["dropped"], row["reason"], row["events"]) == (True, None, 1)
    assert row["bytes"] > 0
    assert name not in await partitions(owner)
    assert await owner.fetchval("SELECT count(*) FROM outbox_events") == 0


async def test_a_partition_stays_while_anything_in_it_is_needed(owner: asyncpg.Connection) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    assert await drop(owner, name, day + DAY) == (False, "1 of its events are not published")
    await publish(owner)
    assert await drop(owner, name, day + DAY / 2) == (False, "its range of ids is not over by then")
    assert await drop(owner, "outbox_events_default", day + DAY) == (
        False,
        "it is no partition of a range of ids",
    )
    assert await drop(owner, "operator_actions", day + DAY) == (False, "it is no partition of a range of ids")
    await owner.execute("ALTER TABLE outbox_events DISABLE TRIGGER outbox_transition")
    await owner.execute("UPDATE outbox_events SET published_at = $1", day + DAY)
    assert await drop(owner, name, day + DAY) == (False, "some of its events were published since")
    assert await owner.fetchval("SELECT outbox_drop_partition($1, NULL)", name) is None
    assert name in await partitions(owner)


async def test_a_partition_is_not_dropped_while_others_are_at_work(
    owner: asyncpg.Connection, database: Database
) -> None:
    day = midnight() + 3 * DAY
    name = await add(owner, day)
    await publish(owner)
    other = await asyncpg.connect(database.dsn)
    async with other.transaction():
        await other.fetch("SELECT id FROM outbox_events FOR UPDATE")
        dropped, reason = await drop(owner, name, day + DAY)
    await other.close()
    assert (dropped, reason) == (False, "other sessions are at work on the outbox; try again")


async def test_a_partition_stays_where_an_event_is_published_again_between_the_look_at_it_and_its_lock(
    owner: asyncpg.Connection, database: Database
) -> None:
    name = await past_partition(owner, days_ago=2)
    await owner.execute(INSERT, id_of_day(2))
    await publish(owner)
    await owner.execute("ALTER TABLE outbox_events DISABLE TRIGGER outbox_transition")
    await owner.execute("UPDATE outbox_events SET published_at = $1", midnight() - 1.5 * DAY)
    other = await asyncpg.connect(database.dsn)
    async with asyncpg.create_pool(database.dsn, min_size=1) as pool, other.transaction():
        await other.execute(f"LOCK TABLE {name} IN SHARE UPDATE EXCLUSIVE MODE")
        dropping = asyncio.create_task(drop(owner, name, midnight() - DAY))
        await eventually(lambda: other.fetchval(WAITING, name))
        await replay_matching(pool, OutboxFilter(), actor="ada", reason="again", cap=1)
        await publish(other)
    assert await dropping == (False, "events have been put back meanwhile")
    assert await other.fetchval("SELECT count(*) FROM outbox_events") == 1
    await other.close()
