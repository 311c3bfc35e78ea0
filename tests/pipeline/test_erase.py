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
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import api
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.archive.job import archive
from sea_mq_worker.pipeline.jobs.erase.job import EraseResult, erase, find
from sea_mq_worker.pipeline.jobs.erase.lake_rows import EventChoice, delete_rows
from sea_mq_worker.pipeline.jobs.typed.event_schemas import EventSchema, load_event_schemas
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE, IDS, SILVER
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import DiedError, Lake, copy_of
from tests.support.documents import commands
from tests.support.programs import own_programs
from tests.support.rows import add_event, add_message
from tests.support.waiting import eventually

TABLES = "SELECT format('%I', c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
TABLES += " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')"
KEY = "k ü"
OF_RUNS = """
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name IN ('sea_mq_worker archive', 'sea_mq_worker erase')
"""
IS_WAITING = f"SELECT count(*) > 0 {OF_RUNS} AND wait_event_type = 'Lock'"
END_SESSIONS = f"SELECT pg_terminate_backend(pid, 10000) {OF_RUNS}"


@dataclass(frozen=True, slots=True)
class World:
    """A database, a stream and a lake, with events of several customers in all of them."""

    pool: asyncpg.Pool
    stream: Stream
    lake: Lake

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

    async def land(self, **options: Any) -> None:
        await self.lake.land(self.stream.name, **options)

    async def archive(self) -> None:
        await asyncio.to_thread(
            archive, self.lake.spark, self.lake.settings, str(self.lake.folder), before=datetime.now(UTC),
            actor="ann", reason="old", on_progress=lambda _: None,
        )  # fmt: skip

    async def erase(self, *, streams: bool = True, **choice: Any) -> EraseResult:
        def run() -> EraseResult:
            where = self.lake.settings, str(self.lake.folder)
            found = find(*where, EventChoice(**choice))
            return erase(*where, found, actor="ann", reason="asked by letter", streams=streams)

        return await asyncio.to_thread(run)

    async def places_of(self, text: str) -> list[str]:
        """Return all tables, files, versions and streams that contain a text."""
        tables = [row[0] for row in await self.pool.fetch(TABLES)]
        query = "SELECT count(*) FROM {} t WHERE strpos(t::text, $1) > 0"
        found = [name for name in tables if await self.pool.fetchval(query.format(name), text)]
        files = [path for path in self.lake.folder.rglob("*") if path.is_file()]
        found += [str(path) for path in files if text in content(path)]
        for log in self.lake.folder.rglob("_delta_log"):
            found += [f"{log.parent}@{version}" for version in versions_with(log.parent, text)]
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


def content(path: Path) -> str:
    """Return all that a file contains, unpacked."""
    packed = path.read_bytes().decode("latin-1")
    return packed + str(pq.ParquetFile(path).read().to_pylist()) if path.suffix == ".parquet" else packed


def versions_with(table: Path, text: str) -> list[int]:
    """Return the versions of a table that can be read and contain a text."""
    found = []
    for version in range(DeltaTable(table).version() + 1):
        try:
            rows = DeltaTable(table, version=version).to_pyarrow_table().to_pylist()
        except Exception:  # noqa: BLE001 - there is no such version
            continue
        found += [version] if text in str(rows) else []
    return found


def of_ids(wrong: str, folder: Path) -> tuple[EventSchema, ...]:
    """Return a schema that one ID violates, so that the reason contains it."""
    document = {"type": "object", "properties": {"id": {"type": "string", "not": {"const": wrong}}}}
    (folder / "customer.moved.v1.json").write_text(json.dumps(document))
    return load_event_schemas(folder)


@pytest.fixture
def lake(spark: SparkSession, settings_with: Callable[..., Settings], tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", settings_with(), spark)


@pytest.fixture
def world(lake: Lake, pool: asyncpg.Pool, stream: Stream) -> World:
    return World(pool, stream, lake)


@pytest.mark.parametrize("table", ["outbox_events", "inbox_messages"])
async def test_an_event_that_a_foreign_key_keeps_is_refused_before_anything_is_erased(
    world: World, table: str
) -> None:
    event = await world.add("ada")
    await world.land()
    await world.pool.execute(f"CREATE TABLE orders (event UUID CONSTRAINT of_event REFERENCES {table})")
    await world.pool.execute("INSERT INTO orders VALUES ($1)", uuid.UUID(event))
    with pytest.raises(PipelineError, match=f"of_event of orders keeps {event} in {table}"):
        await world.erase(ids=frozenset({event}))
    assert world.lake.count(SILVER) == 1
    assert event in await world.stored(1)


async def test_an_erased_event_is_nowhere_and_stays_away(world: World) -> None:
    archived = await world.add("ada")
    await world.archive()
    gone, kept = await world.add("ada"), await world.add("bob")
    copy = copy_of(world.message(gone, "ada"))
    dead_letter = replace(copy, headers={"ce-id": "another", "dlq-message-id": gone.upper()})
    await world.stream.publish([copy, dead_letter])
    await world.land(event_schemas=of_ids(gone, world.lake.folder.parent))
    assert world.lake.count(SILVER) == 4

    done = await world.erase(ids=frozenset({gone, archived}))

    assert done.rows == {
        "typed/customer.moved.v1": 1, "typed/quarantine": 2,
        "inbox": 2, "bronze": 4, "ids": 4, "silver": 3, "outbox": 1, "archive": 1,
    }  # fmt: skip
    assert (done.events, done.stream_messages, done.unused_files) == (2, 4, ())
    assert await world.places_of(gone) == await world.places_of(archived) == []
    assert [row["message_id"] for row in world.lake.rows(SILVER)] == [kept]
    [record] = await world.pool.fetch("SELECT * FROM operator_actions WHERE action = 'erase'")
    assert (record["actor"], record["reason"], record["outcome"]) == ("ann", "asked by letter", "done")

    others = world.message(await world.add("eve"), "eve"), world.message(kept, "bob")
    again = [*map(copy_of, (world.message(gone, "ada"), *others)), dead_letter]
    await world.stream.publish(again)
    await world.land()

    assert await world.places_of(gone) == [f"{world.stream.name}:{seq}" for seq in (7, 10)]
    assert (world.lake.count(SILVER), world.lake.count(IDS)) == (2, 4)


async def test_the_command_of_the_document_erases_an_aggregate(world: World) -> None:
    [command] = commands("docs/how-to/pipeline.md", "Erase events")
    [(_, words)] = own_programs(command.text)
    _, aggregate = words[words.index("--aggregate") + 1].split("/")
    gone = await world.add(aggregate)
    await world.land()
    words[words.index("--lake") + 1] = str(world.lake.folder)

    looked = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--dry-run", "--json"])
    done = await asyncio.to_thread(CliRunner().invoke, app, words)

    assert json.loads(looked.stdout)["rows"] == {
        "outbox": 1, "inbox": 1, "bronze": 1, "archive": 0, "silver": 1
    }  # fmt: skip
    assert done.stdout.startswith("1 events erased; rows: 1 in inbox, 1 in bronze")
    assert await world.places_of(gone) == []


async def test_a_file_that_a_run_may_be_writing_stays_and_is_named(world: World) -> None:
    gone = await world.add("ada")
    await world.land()
    file = world.lake.folder / "silver" / "context=a" / "part-of-a-run.parquet"
    file.parent.mkdir()
    file.write_text("")

    done = await world.erase(ids=frozenset({gone}))
    assert done.unused_files == (str(file),)

    os.utime(file, (0, 0))
    done = await world.erase(ids=frozenset({gone}))
    assert (done.unused_files, file.exists()) == ((), False)


async def test_a_stream_that_forbids_deletion_leaves_rows_and_a_failed_record(world: World) -> None:
    gone = await world.add("ada")
    await world.land()
    config = (await world.stream.info())["config"] | {"deny_delete": True}
    await api(world.stream.connection, f"STREAM.UPDATE.{world.stream.name}", config)

    with pytest.raises(ContractError, match=r"STREAM\.MSG\.DELETE"):
        await world.erase(ids=frozenset({gone}))

    assert await world.pool.fetchval("SELECT outcome FROM operator_actions") == "failed"
    assert (await world.erase(ids=frozenset({gone}), streams=False)).rows["silver"] == 1
    assert await world.places_of(gone) == [f"{world.stream.name}:1"]


async def test_an_event_that_is_still_to_be_delivered_is_refused_by_its_id(world: World) -> None:
    done = await world.add("ada")
    open_ = await add_event(world.pool, aggregate_type="customer", aggregate_id="ada")
    await world.land()

    with pytest.raises(PipelineError, match=f"still to be published or handled: {open_};"):
        await world.erase(aggregate=("customer", "ada"))

    assert "outbox_events" in await world.places_of(done)
    assert await world.pool.fetchval("SELECT count(*) FROM operator_actions") == 0


async def test_nothing_is_erased_while_silver_lacks_messages_that_only_it_can_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, commit = str(uuid.uuid4()), LakeTable.commit
    await world.stream.publish([world.message(foreign, "ada")])

    def die(self: LakeTable, *given: Any, **options: Any) -> bool:
        if self.table_schema is SILVER:
            raise DiedError
        return commit(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", die)
        with pytest.raises(DiedError):
            await world.land()

    with pytest.raises(
        PipelineError, match=f"silver lacks messages of {world.stream.name}; run `pipeline la"
    ):
        await world.erase(aggregate=("customer", "ada"))

    await world.land()
    assert (await world.erase(aggregate=("customer", "ada"))).rows["silver"] == 1


@pytest.mark.crash
@pytest.mark.slow
async def test_a_run_that_is_killed_or_fails_between_commits_is_completed_by_the_same_command(
    world: World,
) -> None:
    """Only the outbox, the archive and silver have the key: each of one event."""
    archived = await world.add("ada", ordering_key=KEY)
    await world.archive()
    foreign = await add_message(world.pool, processed=True)
    await world.stream.publish([world.message(foreign, "ada", partition_key=KEY)])
    ids = [archived, str(foreign), await world.add("ada", ordering_key=KEY)]
    other = await world.add("ada", partition_key="k")
    dead_letter = replace(world.message(ids[2], "ada"), headers={"dlq-message-id": ids[2]})
    await world.stream.publish([dead_letter])
    await world.land()

    await end_run(world, "inbox_messages")
    assert await world.pool.fetchval("SELECT count(*) FROM inbox_messages") == 4
    await end_run(world, "inbox_messages", without_files_of="bronze")
    await add_message(world.pool, message_id=ids[2], processed=True)
    await end_run(world, "inbox_messages", without_files_of="silver")
    await end_run(world, "outbox_events")
    assert await world.pool.fetchval("SELECT count(*) FROM outbox_events") == 2
    assert (world.lake.count(BRONZE), world.lake.count(SILVER)) == (1, 1)
    await end_run(world, "outbox_events", without_files_of="archive")
    assert delete_rows(str(world.lake.folder), ARCHIVE, ids, ()) == 1  # the last commit before the cleanup

    await world.erase(key=KEY)
    assert [await world.places_of(each) for each in ids] == [[], [], []]
    assert await world.places_of(other)


async def end_run(world: World, locked: str, *, without_files_of: str = "") -> None:
    """Kill a run that waits to delete locked rows, or let it fail where a table's files are gone."""
    command = [sys.executable, "-m", "sea_mq_worker", "pipeline", "erase", "--key", KEY, "--stream"]
    given = ["--lake", str(world.lake.folder), "--reason", "asked by letter"]
    gone: list[Path] = []
    async with world.pool.acquire() as other, other.transaction():
        await other.execute(f"SELECT FROM {locked} FOR UPDATE")
        process = await asyncio.create_subprocess_exec(*command, *given)
        await eventually(lambda: world.pool.fetchval(IS_WAITING), within=120)
        if without_files_of:
            files = (world.lake.folder / without_files_of).rglob("*.parquet")
            gone = [file.rename(file.with_suffix(".gone")) for file in [*files]]
        else:
            process.kill()
            await process.wait()
            await world.pool.execute(END_SESSIONS)
    assert await process.wait() == (1 if without_files_of else -signal.SIGKILL)
    for file in gone:
        file.rename(file.with_suffix(".parquet"))
