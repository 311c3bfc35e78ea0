"""Frames of PostgreSQL's tables show one moment of the very server, and what was asked."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.errors import ContractError, StoreUnavailableError, WorkerError
from sea_mq_worker.pipeline.errors import PipelineError, translated
from sea_mq_worker.pipeline.postgres import literal, snapshot
from sea_mq_worker.settings import Settings
from tests.support.certificates import Authority, postgres_tls
from tests.support.partitions import id_of_day, partition_outbox, past_partition
from tests.support.rows import add_event, add_message
from tests.support.servers import Database

ODD = "a 'quote', \"two\", \\back\\slash, \n line, \t tab, \x01, ünï, 漢字, 🦑, \u202e$1 {} %s); DROP x; --"
AT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LONG_AGO = datetime(1492, 10, 12, 1, 2, 3, 456789, tzinfo=UTC)
INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
SELECT gen_random_uuid(), 'order', 'o', 'order.created', '{}' FROM generate_series(1, 500)
"""
OWN_DATABASE = "datname = current_database() AND application_name = 'sea_mq_worker pipeline snapshot'"
END = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OWN_DATABASE}"


def as_spark(row: asyncpg.Record) -> dict[str, Any]:
    """Return a row as Spark shows it: ids as text, times of the session's zone without it."""
    return {
        name: value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, datetime)
        else str(value)
        if name in {"id", "message_id", "correlation_id", "causation_id"} and value is not None
        else value
        for name, value in row.items()
    }


@asynccontextmanager
async def holding(
    settings: Settings, spark: SparkSession
) -> AsyncIterator[Callable[..., Awaitable[DataFrame]]]:
    """Hold a snapshot, whose own loop needs another thread than the test's, and yield its ``read``."""
    context = snapshot(settings)
    held = await asyncio.to_thread(context.__enter__)
    try:
        yield partial(asyncio.to_thread, held.read, spark)
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def refusal(settings: Settings) -> WorkerError:
    """Return why no snapshot can be taken."""
    with pytest.raises(WorkerError) as refused:
        await asyncio.to_thread(snapshot(settings).__enter__)
    return refused.value


async def test_every_column_comes_as_it_is_and_values_of_a_condition_are_never_sql(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    await add_event(pool, "DEAD", error=ODD, event_type=ODD, aggregate_id="", partition_key="")
    await add_event(pool, "PENDING", payload=json.dumps({"odd": ODD.replace("\x01", ""), "n": 1e300}))
    await add_event(pool, "CLAIMED", headers='{"a": "é\\u00e9"}', metadata="[1, null]", ordering_key="\\'")
    large = await add_event(pool, "PUBLISHED", payload=json.dumps("x" * 3_000_000), occurred_at=LONG_AGO)
    await add_message(pool, processed=True)
    await add_message(pool, dead=True, received_at=AT)
    await pool.execute("UPDATE inbox_messages SET content_hash = '\\x00ff10' WHERE dead_lettered_at IS NULL")
    events = [as_spark(row) for row in await pool.fetch("SELECT * FROM outbox_events")]
    messages = [as_spark(row) for row in await pool.fetch("SELECT * FROM inbox_messages")]

    async with holding(settings, spark) as read:
        outbox = await read("outbox_events", [*events[0], "octet_length(payload::text) AS bytes_"])
        found = {row["id"]: row.asDict() for row in outbox.collect()}
        inbox = await read("inbox_messages", [*messages[0]])
        received = {row["message_id"]: row.asDict() for row in inbox.collect()}

        async def chosen(where: str) -> set[str]:
            return {row[0] for row in (await read("outbox_events", ["id"], where, pages=0)).collect()}

        for name, value in {
            "event_type": ODD,
            "ordering_key": "\\'",
            "id": large,
            "occurred_at": LONG_AGO,
        }.items():
            [row] = await pool.fetch(f"SELECT id::text FROM outbox_events WHERE {name} = $1", value)
            assert await chosen(f"{name} = {literal(value)}") == {row["id"]}
        hostile = literal(f"{ODD}' OR true OR '")
        assert await chosen(f"event_type = {hostile}") == set()

    assert found == {row["id"]: row | {"bytes_": len(row["payload"].encode())} for row in events}
    assert received == {row["message_id"]: row for row in messages}


async def test_all_tasks_see_one_moment_of_each_partition_and_times_within_sparks_years(
    settings: Settings, database: Database, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    async with holding(settings, spark) as read:
        assert (await read("outbox_events", ["id", "created_at"])).collect() == []
        assert (await read("inbox_messages", ["message_id"])).isEmpty()
    await partition_outbox(database.dsn)
    await past_partition(pool, days_ago=3)
    old = await add_event(pool, id=id_of_day(3))
    await pool.execute(INSERT)
    before = {row["seq"] for row in await pool.fetch("SELECT seq FROM outbox_events")}
    await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    endless = "UPDATE outbox_events SET occurred_at = '-infinity', created_at = '20000-01-01' WHERE id = $1"
    await pool.execute(endless, old)

    async with holding(settings, spark) as read:
        frame = await read("outbox_events", ["id", "seq", "occurred_at", "created_at"], pages=6)
        await pool.execute("UPDATE outbox_events SET available_at = now(), aggregate_id = 'p'")
        await pool.execute(INSERT)
        rows = frame.collect()
        parts = frame.select(F.spark_partition_id()).distinct().count()
        assert (await read("outbox_events", ["seq"], pages=0)).count() == 501

    assert sorted(row["seq"] for row in rows) == sorted(before)
    assert parts > 2
    [early] = [row for row in rows if row["id"] == str(old)]
    assert early["occurred_at"] == datetime(2, 1, 1)  # noqa: DTZ001 - as Spark has it
    assert early["created_at"] == datetime(9998, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001


async def test_a_lost_snapshot_a_lost_server_and_a_wrong_context_are_one_sentence_each(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    await add_event(pool)
    async with holding(settings, spark) as read:
        changing = await read("outbox_events", ["nextval('outbox_events_seq_seq') AS n"])
        with pytest.raises(ContractError, match="read-only transaction"), translated():
            changing.collect()
        frame = await read("outbox_events", ["id"])
        assert await pool.fetchval(END)
        with pytest.raises(PipelineError, match="session that holds the snapshot") as gone, translated():
            frame.collect()
        assert "\n" not in str(gone.value)
        with pytest.raises(StoreUnavailableError):
            await read("outbox_events", ["id"])

    await pool.execute("INSERT INTO sea_mq_context (context) VALUES ('orders')")
    assert "belong to the context orders" in str(await refusal(settings))


async def test_any_password_works_and_is_never_shown(
    database: Database,
    pool: asyncpg.Pool,
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    await add_event(pool)
    password = "p%20:/?#[]@!$&'()*+,;= \\\"ü"
    quoted = password.replace("'", "''")
    await pool.execute(f"CREATE ROLE odd_password LOGIN IN ROLE pg_read_all_data PASSWORD '{quoted}'")
    try:
        address = urlsplit(database.dsn)
        encoded = quote(password, safe="")
        place = f"{address.hostname}:{address.port}"
        dsn = address._replace(netloc=f"odd_password:{encoded}@{place}").geturl()
        file = tmp_path / "password"
        file.write_text(password)
        other = f"postgresql://?host={address.hostname}&port={address.port}&user=odd_password&dbname={database.name}"
        options = "options=-c%20work_mem%3D3MB"
        for given in (
            {"database_url": f"{dsn}?{options}&ssl=false&schema=public"},
            {"database_url": other, "database_password_file": file},
            {"database_url": dsn.replace(place, f"127.0.0.1:1,{place}")},
        ):
            settings = Settings.model_validate({"database_schema": "public", **given})
            async with holding(settings, spark) as read:
                frame = await read("outbox_events", ["current_setting('work_mem') AS work_mem"])
                frame.explain(mode="extended")
                assert [row[0] for row in frame.collect()] == ["3MB" if "MB" in str(given) else "4MB"]
                broken = await read("outbox_events", ["1 / (seq - seq) AS n"])
        with pytest.raises(PipelineError, match="snapshot") as told, translated():
            broken.collect()
        shown = capfd.readouterr()
        for secret in (password, encoded):
            assert secret not in f"{shown.out}{shown.err}{told.value}{told.value.__cause__}"
        wrong = Settings.model_validate({"database_url": dsn.replace(encoded, "wr0ng")})
        told_of = str(await refusal(wrong))
        assert "refuses the user or password" in told_of
        assert "wr0ng" not in told_of
    finally:
        await pool.execute("DROP ROLE odd_password")


async def test_executors_verify_the_server_as_the_url_says(
    database: Database, pool: asyncpg.Pool, spark: SparkSession, tmp_path: Path
) -> None:
    await add_event(pool)
    authority = Authority(tmp_path)
    trusted = authority.for_servers(authority.issue("server", "127.0.0.1"), verify_clients=ssl.CERT_NONE)
    async with postgres_tls(database.dsn, trusted) as dsn:
        url = f"{dsn}?sslmode=verify-full&sslrootcert={authority.ca}"
        settings = Settings.model_validate({"database_url": url, "database_schema": "public"})
        async with holding(settings, spark) as read:
            frame = await read("outbox_events", ["id"])
            assert await asyncio.to_thread(frame.count) == 1
