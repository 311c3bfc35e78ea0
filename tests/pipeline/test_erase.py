"""An erased event is nowhere afterwards, and nothing brings it back."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import api
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.archive import archive, exclusive
from sea_mq_worker.pipeline.jobs.erase import EraseResult, erase, find, id_hash, without_erased
from sea_mq_worker.pipeline.jobs.typed import catch_up, load_event_schemas
from sea_mq_worker.pipeline.lake import ARCHIVE, BRONZE, ERASED, SILVER, Lake
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Published, Stream
from tests.support.rows import add_event, add_message
from tests.support.waiting import eventually

TABLES = "SELECT format('%I', c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
TABLES += " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')"
KEY = "k ü"
OF_RUNS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sea_mq_worker erase'"
)
IS_WAITING = f"SELECT count(*) > 0 {OF_RUNS} AND wait_event_type = 'Lock'"
END_SESSIONS = f"SELECT pg_terminate_backend(pid, 10000) {OF_RUNS}"
GONE = "0b6b7f0e-5a52-4c0c-8f0f-2d9f4ad4b7aa"


@dataclass(frozen=True, slots=True)
class World:
    """A database, a stream and a lake, with events of several customers in all of them."""

    pool: asyncpg.Pool
    stream: Stream
    lake: Lake
    settings: Settings
    config: str

    async def add(self, customer: str, state: str = "PUBLISHED", **given: Any) -> str:
        """Insert an event of a customer, store it in the stream, and record it in the inbox."""
        event = await add_event(self.pool, state, aggregate_type="customer", aggregate_id=customer, **given)
        await add_message(self.pool, message_id=event, processed=True)
        await self.stream.publish([self.message(event, customer, **given)])
        stored = self.stream.name, await self.stream.last_seq()
        await self.pool.execute(
            "UPDATE outbox_events SET stream = $2, stream_seq = $3 WHERE id = $1", event, *stored
        )
        return str(event)

    def message(self, event: uuid.UUID | str, customer: str, **given: Any) -> Published:
        headers = {"Nats-Msg-Id": str(event), "ce-id": str(event), "ce-subject": f"customer/{customer}"}
        if key := given.get("partition_key"):
            headers["ce-partitionkey"] = key
        subject = f"{self.stream.name}.event.customer.moved.v1"
        return Published(subject, headers, json.dumps({"id": str(event), "who": customer}).encode())

    def land(self, *, silver: bool = True) -> None:
        """Copy the stream's new messages to bronze, and the first copy of each ID to silver."""
        for table in (BRONZE, SILVER):
            self.lake.create(table)
        source = (
            self.lake.spark.read.format("jetstream")
            .options(stream=self.stream.name, config=self.config)
            .load()
        )
        added = {"incarnation": fn.col("created"), "date": fn.to_date("time")}
        messages = without_erased(self.lake, source.withColumns(added)).drop("created")
        self.lake.insert_new("bronze", messages, "t.stream = s.stream AND t.seq = s.seq")
        made = {"published_at": fn.col("time"), "payload": fn.col("data").cast("string"), "bytes": fn.lit(1)}
        columns = [made.get(name, fn.col(name)).alias(name) for name in SILVER.columns]
        firsts = self.lake.read("bronze").orderBy("seq").dropDuplicates(["message_id"])
        if silver:
            self.lake.insert_new("silver", firsts.select(columns), "t.message_id = s.message_id")

    def archive(self) -> None:
        archive(
            self.lake.spark, self.settings, lake=self.lake.address, before=datetime.now(UTC), actor="ann",
            reason="old", on_progress=lambda _: None,
        )  # fmt: skip

    async def erase(self, **choice: Any) -> EraseResult:
        return await asyncio.to_thread(self.erase_now, **choice)

    def erase_now(self, *, streams: bool = True, **choice: Any) -> EraseResult:
        given = {"lake": self.lake.address, "actor": "ann", "reason": "asked by letter"}
        return erase(self.lake.spark, self.settings, **given, streams=streams, **choice)

    def erase_beside_an_archive(self, **choice: Any) -> EraseResult:
        with exclusive(self.settings, purpose="archive"):
            return self.erase_now(**choice)

    def files(self) -> list[Path]:
        return [path for path in Path(self.lake.address).rglob("*") if path.is_file()]

    def count(self, table: str) -> int:
        return self.lake.read(table).count()

    async def places_of(self, text: str, *, logs: bool = True) -> list[str]:
        """Return all tables, files of the lake and streams that contain a text."""
        tables = [row[0] for row in await self.pool.fetch(TABLES)]
        query = "SELECT count(*) FROM {} t WHERE strpos(t::text, $1) > 0"
        found = [name for name in tables if await self.pool.fetchval(query.format(name), text)]
        parquet = self.lake.spark.read.option("recursiveFileLookup", "true").option("mergeSchema", "true")
        for path in self.files():
            is_log = "_delta_log" in path.parts
            if path.suffix == ".parquet" and not is_log:
                rows = [str(row) for row in parquet.parquet(str(path)).collect()]
                found += [str(path)] if text in "".join(rows) else []
            elif (logs or not is_log) and text in path.read_bytes().decode("latin-1"):
                found.append(str(path))
        state = (await self.stream.info())["state"]
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            found += [f"{self.stream.name}:{seq}"] if text in await self.stored(seq) else []
        return found

    async def stored(self, seq: int) -> str:
        try:
            message = await self.stream.connection.client.jetstream().get_msg(self.stream.name, seq)
        except Exception as error:  # noqa: BLE001 - nats-py has a type for each
            return str(error)
        return f"{message.headers}{message.data!r}"


def copy_of(message: Published) -> Published:
    """Return the message without the header by which the server drops duplicates."""
    return replace(message, headers={k: v for k, v in message.headers.items() if k != "Nats-Msg-Id"})


@pytest.fixture
def world(
    spark: SparkSession,
    settings_with: Callable[..., Settings],
    pool: asyncpg.Pool,
    stream: Stream,
    tmp_path: Path,
) -> World:
    return World(
        pool, stream, Lake(spark, str(tmp_path / "lake ü")), settings_with(), str(tmp_path / "settings.toml")
    )


def test_a_message_with_an_erased_id_in_any_header_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    headers = [
        [("Nats-Msg-Id", GONE.upper())],
        [("x", GONE)],
        [("DLQ-Message-Id", "other"), ("dlq-message-id", GONE)],
        [],
        None,
    ]
    rows = [("S", "i", seq, "other", given) for seq, given in enumerate(headers, 1)]
    columns = "stream STRING, incarnation STRING, seq BIGINT, message_id STRING"
    columns += ", headers ARRAY<STRUCT<key: STRING, value: STRING>>"
    frame = spark.createDataFrame([*rows, ("S", "i", 6, GONE, None)], columns)
    assert without_erased(lake, frame) is frame, "a lake without a record has erased nothing"

    lake.create(ERASED)
    record = spark.createDataFrame([(id_hash(GONE), datetime.now(UTC))], ERASED.ddl)
    record.writeTo(lake.table(ERASED.name)).append()

    assert sorted(row.seq for row in without_erased(lake, frame).collect()) == [2, 4, 5]


@pytest.mark.long
async def test_an_erased_event_is_nowhere_and_stays_away(world: World, tmp_path: Path) -> None:
    archived = await world.add("Ada L.")
    await asyncio.to_thread(world.archive)
    gone, kept = await world.add("Ada L."), await world.add("bob")
    copy = copy_of(world.message(gone, "Ada L."))
    dead_letter = replace(copy, headers={"ce-id": "another", "dlq-message-id": gone.upper()})
    await world.stream.publish([copy, dead_letter])
    world.land()
    wrong = {"type": "object", "properties": {"id": {"type": "string", "not": {"const": gone}}}}
    (tmp_path / "customer.moved.v1.json").write_text(json.dumps(wrong))
    assert catch_up(world.lake, load_event_schemas(tmp_path)) == (2, 2)

    choice = {"ids": [gone], "aggregate": ("customer", "Ada L.")}
    looked = await asyncio.to_thread(
        find, world.lake.spark, world.settings, lake=world.lake.address, ids=[gone, archived]
    )
    with pytest.raises(PipelineError, match="another archive or erasure is running"):
        await asyncio.to_thread(world.erase_beside_an_archive, **choice)
    assert await world.places_of(gone)
    done = await world.erase(**choice)

    assert looked == EraseResult(
        events=2, rows={"outbox": 1, "inbox": 2, "bronze": 4, "archive": 1, "silver": 3}, dry_run=True
    )
    assert done.rows == {
        "typed/customer.moved.v1": 1, "typed/quarantine": 2, "inbox": 2, "bronze": 4, "silver": 3,
        "outbox": 1, "archive": 1,
    }  # fmt: skip
    assert (done.events, done.stream_messages) == (2, 4)
    assert await world.places_of("Ada L.") == []
    assert await world.places_of(gone, logs=False) == await world.places_of(archived, logs=False) == []
    assert [row["message_id"] for row in world.lake.read("silver").collect()] == [kept]
    assert (world.count("typed/customer.moved.v1"), world.count("typed/quarantine")) == (1, 0)
    [record] = await world.pool.fetch("SELECT * FROM operator_actions WHERE action = 'erase'")
    assert (record["actor"], record["reason"], record["outcome"]) == ("ann", "asked by letter", "done")

    eve = world.message(await world.add("eve"), "eve")
    await world.stream.publish([copy_of(world.message(gone, "Ada L.")), dead_letter, copy_of(eve)])
    world.land()
    assert await world.places_of(gone, logs=False) == [f"{world.stream.name}:{seq}" for seq in (7, 8)]
    assert (world.count("bronze"), world.count("silver")) == (3, 2)


async def test_nothing_is_erased_before_each_event_can_be_erased(world: World) -> None:
    event, foreign = await world.add("ada"), str(uuid.uuid4())
    world.land()
    await world.pool.execute(
        "CREATE TABLE orders (event UUID CONSTRAINT of_event REFERENCES outbox_events);"
        "CREATE TABLE mails (message UUID CONSTRAINT of_message REFERENCES inbox_messages)"
    )
    for table, name in (
        ("orders", "of_event of orders keeps {} in outbox"),
        ("mails", "of_message of mails keeps {}"),
    ):
        await world.pool.execute(f"INSERT INTO {table} VALUES ($1)", uuid.UUID(event))
        with pytest.raises(PipelineError, match=name.format(event)):
            await world.erase(ids=[event])
        await world.pool.execute(f"DELETE FROM {table}")

    waiting = await add_event(world.pool, aggregate_type="customer", aggregate_id="ada")
    with pytest.raises(PipelineError, match=f"still to be published or handled: {waiting};"):
        await world.erase(aggregate=("customer", "ada"))

    await world.stream.publish([world.message(foreign, "ada")])
    world.land(silver=False)
    with pytest.raises(
        PipelineError, match=f"silver` lacks messages of {world.stream.name}; run `pipeline land` first"
    ):
        await world.erase(aggregate=("customer", "ada"))
    assert (world.count("bronze"), world.count("silver"), world.lake.exists("erased")) == (2, 1, False)
    assert event in await world.stored(1)
    assert await world.pool.fetchval("SELECT count(*) FROM operator_actions") == 0
    nowhere = Lake(world.lake.spark, f"{world.lake.address}/none")
    with pytest.raises(PipelineError, match="there is no lake"):
        await replace(world, lake=nowhere).erase(ids=[event])


@pytest.mark.long
async def test_a_stream_that_forbids_deletion_leaves_rows_and_a_failed_record(world: World) -> None:
    gone = await world.add("ada")
    world.land()
    config = (await world.stream.info())["config"] | {"deny_delete": True}
    await api(world.stream.connection, f"STREAM.UPDATE.{world.stream.name}", config)

    with pytest.raises(ContractError, match=r"STREAM\.MSG\.DELETE"):
        await world.erase(ids=[gone])

    assert await world.pool.fetchval("SELECT outcome FROM operator_actions") == "failed"
    assert (await world.erase(ids=[gone], streams=False)).rows["silver"] == 1
    assert await world.places_of(gone, logs=False) == [f"{world.stream.name}:1"]


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_run_that_is_killed_or_fails_between_commits_is_completed_by_the_same_command(
    world: World,
) -> None:
    """Only the outbox, the archive and silver have the key: each of one event."""
    archived = await world.add("ada", ordering_key=KEY)
    await asyncio.to_thread(world.archive)
    foreign = await add_message(world.pool, processed=True)
    await world.stream.publish([world.message(foreign, "ada", partition_key=KEY)])
    ids = [archived, str(foreign), await world.add("ada", ordering_key=KEY)]
    other = await world.add("ada", partition_key="k")
    dead_letter = replace(world.message(ids[2], "ada"), headers={"ce-id": "dead", "dlq-message-id": ids[2]})
    await world.stream.publish([dead_letter])
    world.land()

    await end_run(world, "inbox_messages")
    assert await world.pool.fetchval("SELECT count(*) FROM inbox_messages") == 4
    await end_run(world, "inbox_messages", without_files_of="bronze")
    await add_message(world.pool, message_id=uuid.UUID(ids[2]), processed=True)
    await end_run(world, "inbox_messages", without_files_of="silver")
    await end_run(world, "outbox_events")
    assert await world.pool.fetchval("SELECT count(*) FROM outbox_events") == 2
    assert (world.count("bronze"), world.count("silver")) == (1, 1)
    await end_run(world, "outbox_events", without_files_of="archive")

    assert (await world.erase(key=KEY)).rows[ARCHIVE.name] == 1
    assert [await world.places_of(each, logs=False) for each in ids] == [[], [], []]
    assert await world.places_of(other)


async def end_run(world: World, locked: str, *, without_files_of: str = "") -> None:
    """Kill a run that waits to delete locked rows, or let it fail where a table's files are gone."""
    command = [sys.executable, "-m", "sea_mq_worker", "pipeline", "erase", "--key", KEY, "--stream", "--yes"]
    given = ["--lake", world.lake.address, "--reason", "asked by letter", "--master", "local[1]"]
    gone: list[Path] = []
    async with world.pool.acquire() as other, other.transaction():
        await other.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await other.execute(f"SELECT FROM {locked} FOR UPDATE")
        process = await asyncio.create_subprocess_exec(*command, *given, start_new_session=True)
        await eventually(lambda: world.pool.fetchval(IS_WAITING), within=300)
        if without_files_of:
            files = (Path(world.lake.address) / without_files_of).rglob("*.parquet")
            gone = [
                file.rename(file.with_suffix(".gone")) for file in [*files] if "_delta_log" not in file.parts
            ]
        else:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await world.pool.execute(END_SESSIONS)
    assert await process.wait() == (1 if without_files_of else -signal.SIGKILL)
    for file in gone:
        file.rename(file.with_suffix(".parquet"))
