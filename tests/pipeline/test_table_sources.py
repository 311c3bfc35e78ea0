"""The sources ``outbox`` and ``inbox`` show the tables as they were at one moment, and what was asked."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from sea_mq_worker.errors import ContractError, StoreUnavailableError, WorkerError
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.snapshot import Condition, read_inbox, read_outbox, snapshot
from sea_mq_worker.pipeline.sources.tables.connection import connected, libpq_uri
from sea_mq_worker.pipeline.sources.tables.source import TableReader
from sea_mq_worker.settings import Settings
from tests.support.rows import add_event, add_message
from tests.support.servers import Database

ODD = "a 'quote', \"two\", \\back\\slash, \n line, \t tab, \x01, ünï, 漢字, 🦑, \u202e$1 {} %s); DROP x; --"
AT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


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


async def test_tables_of_another_context_are_not_read(settings: Settings, pool: asyncpg.Pool) -> None:
    await pool.execute("INSERT INTO sea_mq_context (context) VALUES ('orders')")
    with pytest.raises(ContractError, match="belong to the context orders"), snapshot(settings):
        pass


async def test_every_column_comes_as_it_is(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    await add_event(pool, "DEAD", error=ODD, event_type=ODD, aggregate_id="", partition_key="")
    await add_event(pool, "PENDING", payload=json.dumps({"odd": ODD.replace("\x01", ""), "n": 1e300}))
    await add_event(pool, "CLAIMED", headers='{"a": "é\\u00e9"}', metadata="[1, null]", ordering_key=ODD)
    await add_event(pool, "PUBLISHED", payload=json.dumps("x" * 3_000_000), occurred_at=AT, event_version=7)
    await add_message(pool, processed=True)
    await add_message(pool, dead=True, received_at=AT)
    await pool.execute("UPDATE inbox_messages SET content_hash = '\\x00ff10' WHERE dead_lettered_at IS NULL")

    with snapshot(settings) as held:
        outbox = {row["id"]: row.asDict() for row in read_outbox(spark, held).collect()}
        inbox = {row["message_id"]: row.asDict() for row in read_inbox(spark, held).collect()}

    events = [as_spark(row) for row in await pool.fetch("SELECT * FROM outbox_events")]
    messages = [as_spark(row) for row in await pool.fetch("SELECT * FROM inbox_messages")]
    lengths = {str(row["id"]): len(row["payload"].encode()) for row in events}
    assert outbox == {row["id"]: row | {"payload_bytes": lengths[row["id"]]} for row in events}
    assert inbox == {row["message_id"]: row for row in messages}


async def test_a_time_that_spark_cannot_hold_becomes_the_nearest(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    event = await add_event(pool)
    await pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    await pool.execute("UPDATE outbox_events SET occurred_at = '-infinity', created_at = '20000-01-01'")

    with snapshot(settings) as held:
        (row,) = read_outbox(spark, held, columns=["id", "occurred_at", "created_at"]).collect()

    assert row.asDict() == {
        "id": str(event),
        "occurred_at": datetime(2, 1, 1),  # noqa: DTZ001 - as Spark has it
        "created_at": datetime(9998, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    }


async def test_conditions_choose_rows_and_values_are_never_sql(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    hostile = [ODD, "x') OR true; DROP TABLE inbox_messages; --", "\\", "\\'", "''"]
    plain = await add_event(pool, created_at=AT, ordering_key="k")
    named = [await add_event(pool, event_type=name, created_at=AT + timedelta(days=1)) for name in hostile]
    published = await add_event(pool, "PUBLISHED")
    message = await add_message(pool, received_at=AT)
    await add_message(pool)

    with snapshot(settings) as held:

        def chosen(*where: Condition) -> set[str]:
            return {row[0] for row in read_outbox(spark, held, columns=["id"], where=where).collect()}

        assert chosen(("event_type", "in", hostile)) == set(map(str, named))
        assert chosen(("ordering_key", "in", ["k", *hostile])) == {str(plain)}
        assert chosen(("id", "in", [plain, str(published)])) == {str(plain), str(published)}
        assert chosen(("id", "in", [])) == set()
        assert chosen(("state", "=", EventState.PUBLISHED), ("seq", ">", 0)) == {str(published)}
        assert chosen(("published_at", "<", datetime.now(UTC) + timedelta(days=1))) == {str(published)}
        later = AT + timedelta(seconds=1)
        assert chosen(("created_at", ">=", AT), ("created_at", "<", later), ("seq", "<", None)) == {
            str(plain)
        }
        received = read_inbox(
            spark, held, where=[("consumer", "=", "durable"), ("received_at", "<", AT + timedelta(seconds=1))]
        )
        assert [row["message_id"] for row in received.collect()] == [str(message)]


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("columns", "subject, reply::text", "no column 'reply::text'"),
        ("states", "[]", "unknown option 'states'"),
    ],
)
def test_a_wrong_option_is_refused(spark: SparkSession, option: str, value: str, problem: str) -> None:
    with pytest.raises(PySparkException, match=f"PipelineError: inbox_messages.*{problem}"):
        spark.read.format("inbox").option(option, value).load()


async def test_a_read_changes_nothing(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"where": "nextval('outbox_events_seq_seq') > 0", "config": str(tmp_path / "settings.toml")}
    await add_event(pool)
    with pytest.raises(PySparkException, match="read-only transaction"):
        spark.read.format("outbox").options(**options).load().collect()


async def test_all_partitions_see_one_moment(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession, tmp_path: Path
) -> None:
    insert = (
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
        " SELECT gen_random_uuid(), 'order', 'o', 'order.created', '{}' FROM generate_series(1, 500)"
    )
    await pool.execute(insert)
    before = {row["seq"] for row in await pool.fetch("SELECT seq FROM outbox_events")}
    config = str(tmp_path / "settings.toml")

    with snapshot(settings) as held:
        frame = read_outbox(spark, held, columns=["seq", "state"], pages_per_partition=6)
        await pool.execute("UPDATE outbox_events SET available_at = now(), state = 'PENDING'")
        await pool.execute(insert)
        assert held.rows("SELECT count(*) AS n FROM outbox_events WHERE seq >= $1::bigint", 0) == [{"n": 500}]
        seen = [tuple(row) for row in frame.collect()]
        assert frame.rdd.getNumPartitions() > 2
        assert read_outbox(spark, held).count() == 500
        alone = read_outbox(spark, held, pages_per_partition=0)
        assert (alone.count(), alone.rdd.getNumPartitions()) == (500, 1)

    assert sorted(seen) == [(seq, "PENDING") for seq in sorted(before)]
    assert spark.read.format("outbox").option("config", config).load().count() == 1000


async def test_an_empty_table_has_no_rows(settings: Settings, spark: SparkSession) -> None:
    with snapshot(settings) as held:
        assert read_outbox(spark, held).isEmpty()
        assert read_inbox(spark, held).isEmpty()


async def test_reading_after_the_snapshot_has_gone_is_refused(
    settings: Settings, pool: asyncpg.Pool, spark: SparkSession
) -> None:
    await add_event(pool)
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'sea_mq_worker pipeline snapshot' AND datname = current_database()"
    )

    with pytest.raises(StoreUnavailableError), snapshot(settings) as held:  # noqa: PT012
        frame = read_outbox(spark, held)
        assert await pool.fetchval(end)
        with pytest.raises(
            PySparkException, match="does not exist: the session that holds the snapshot"
        ) as gone:
            frame.collect()
        held.rows("SELECT 1 AS one")

    secret = urlsplit(settings.database_url.get_secret_value()).password or "?"
    shown = [str(gone.value), frame._jdf.queryExecution().toString()]
    assert not [text for text in shown if secret in text]


@pytest.mark.usefixtures("settings")
async def test_a_read_that_loses_its_connection_fails(pool: asyncpg.Pool) -> None:
    for _ in range(6):
        await add_event(pool, payload=json.dumps("x" * 10_000_000))
    reader = TableReader(table="outbox_events", columns={"payload": "string"})
    batches = reader.read(InputPartition(None))
    next(batches)
    await pool.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'sea_mq_worker pipeline read' AND datname = current_database()"
    )
    with pytest.raises(StoreUnavailableError, match="ended a read early"):
        list(batches)


async def test_a_password_of_any_characters_works_for_both_drivers(
    database: Database, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    password = "p%20:/?#[]@!$&'()*+,;= \\\"ü"
    await pool.execute("CREATE ROLE odd_password LOGIN PASSWORD '" + password.replace("'", "''") + "'")
    try:
        address = urlsplit(database.dsn)
        login = f"odd_password:{quote(password, safe='')}@{address.hostname}:{address.port}"
        dsn = address._replace(netloc=login).geturl()
        await (await asyncpg.connect(dsn)).close()
        file = tmp_path / "password"
        file.write_text(password)
        without = dsn.replace(f":{quote(password, safe='')}", "")
        for given in ({"database_url": dsn}, {"database_url": without, "database_password_file": file}):
            settings = Settings.model_validate({**given, "database_schema": "public"})
            with connected(settings, purpose="test") as cursor:
                cursor.execute("SELECT current_user")
                assert cursor.fetchone() == ("odd_password",)
        wrong = Settings.model_validate({"database_url": dsn.replace(quote(password, safe=""), "wr0ng")})
        with pytest.raises(ContractError) as refused, connected(wrong, purpose="test"):
            pass
        assert "wr0ng" not in str(refused.value)
    finally:
        await pool.execute("DROP ROLE odd_password")


def test_a_session_that_is_read_only_by_default_may_read_with_options_of_the_dsn(database: Database) -> None:
    others = "ssl=false&schema=public&target_session_attrs=any&channel_binding=prefer&connect_timeout=3"
    given = f"{database.dsn}?{others}&options=-c%20default_transaction_read_only%3Don%20-c%20work_mem%3D3MB"
    settings = Settings.model_validate({"database_url": given, "database_schema": "public"})
    with connected(settings, purpose="test") as cursor:
        cursor.execute("SELECT current_setting('work_mem')")
        assert cursor.fetchone() == ("3MB",)


@pytest.mark.parametrize(
    ("dsn", "wanted"),
    [
        ("postgresql://u@h/d", {"host": "h", "user": "u", "dbname": "d"}),
        ("postgres://h:1,[::1]:2,i/d", {"host": "h,::1,i", "port": "1,2,5432", "dbname": "d"}),
        ("postgresql:///d?host=/run/sock&user=u", {"host": "/run/sock", "user": "u", "dbname": "d"}),
        (
            "postgresql://h/?dbname=d&sslmode=verify-full&sslrootcert=/ca%20x.pem",
            {"sslmode": "verify-full", "sslrootcert": "/ca x.pem", "dbname": "d"},
        ),
    ],
)
def test_a_dsn_means_the_same_to_libpq(dsn: str, wanted: dict[str, str]) -> None:
    told = {
        name: values[0]
        for name, values in parse_qs(urlsplit(libpq_uri(dsn, schema="s", purpose="p")).query).items()
    }
    assert wanted.items() <= told.items()
    assert 'search_path="s",\\ pg_temp' in told["options"]


@pytest.mark.parametrize(
    "dsn", ["mysql://u:secret@h/d", "postgresql://u:secret@h:1:2/d", "postgresql://h/d?secret"]
)
def test_a_dsn_that_is_none_is_refused_without_being_shown(dsn: str) -> None:
    with pytest.raises(WorkerError, match="DSN is not valid") as refused:
        libpq_uri(dsn, schema="s", purpose="p")
    assert "secret" not in str(refused.value)
