"""A loss of the stream is never skipped in silence; whatever happens to a run, nothing is lost or doubled."""

import asyncio
import os
import random
import shutil
import signal
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.dev.servers import EmbeddedNats, free_port
from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.jobs.land import LandResult
from sea_mq_worker.pipeline.lake import BRONZE, Lake, Table
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import LandedLake, event, events_of, lake_at
from tests.support.jetstream import connected
from tests.support.waiting import eventually

RELEASE_1 = Path(__file__).with_name("lake-1.0")
EVENTS, BATCH = 6_000, 1_500
KILLS = 10
KILLED_WITHIN_SECONDS = 5.0
START_SECONDS = 600


@pytest.mark.long
async def test_a_loss_is_named_and_passed_only_if_it_is_accepted(lake: LandedLake, stream: Stream) -> None:
    other = Stream(stream.connection, f"{stream.name}b")
    await other.create()
    await stream.publish(events_of(stream.name, 10))
    await lake.land(stream.name)
    await stream.publish(events_of(stream.name, 10, 20))
    await stream.purge(seq=16)
    await other.publish([event(other.name, 1)])
    assert await lake.left(stream.name) == 5

    with pytest.raises(DataLossError, match=r"sequences 11 to 15 were removed .* continue from sequence 16"):
        await lake.land(stream.name, other.name)

    assert lake.count("bronze") == lake.count("silver") == 11, "the other stream was landed"
    result = await lake.land(stream.name, accept_loss=True)
    assert (result.rows, len(result.missing)) == (5, 1)
    assert lake.seqs("bronze", stream.name) == [*range(1, 11), *range(16, 21)]
    await stream.purge()
    assert (await lake.land(stream.name)).rows == 0, "what was landed may be removed"

    await stream.drop()
    await stream.create()
    await stream.publish(events_of(stream.name, 18, 23))
    assert await lake.left(stream.name) == 5
    with pytest.raises(
        DataLossError, match=rf"stream {stream.name} was deleted and created again: sequence 20"
    ):
        await lake.land(stream.name)
    result = await lake.land(stream.name, accept_loss=True)
    assert (result.rows, result.events, len(result.missing)) == (5, 3, 1)
    assert len({row["incarnation"] for row in lake.rows("bronze") if row["stream"] == stream.name}) == 2
    again = await lake.land(stream.name)
    assert (again.rows, again.missing) == (0, ())
    lake.assert_counted()


@pytest.mark.long
async def test_a_stream_that_was_restored_to_an_older_state_is_landed_as_another_incarnation(
    spark: SparkSession, tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, port = tmp_path / "nats", free_port()
    home.mkdir()
    lake = lake_at(spark, tmp_path / "lake", f"nats://127.0.0.1:{port}", monkeypatch)

    async def put(first: int, behind: int) -> None:
        async with connected(f"nats://127.0.0.1:{port}") as connection:
            await Stream(connection, names).publish(events_of(names, first, behind))

    async with EmbeddedNats(home, port=port):
        async with connected(f"nats://127.0.0.1:{port}") as connection:
            await Stream(connection, names).create()
        await put(0, 10)
    shutil.copytree(home / "jetstream", tmp_path / "backup")
    async with EmbeddedNats(home, port=port):
        await put(10, 15)
        assert (await lake.land(names)).rows == 15
    shutil.rmtree(home / "jetstream")
    shutil.copytree(tmp_path / "backup", home / "jetstream")
    async with EmbeddedNats(home, port=port):
        with pytest.raises(DataLossError, match=r"ends at sequence 10, but 15 was landed"):
            await lake.land(names)
        await put(20, 27)
        async with connected(f"nats://127.0.0.1:{port}") as connection:
            await Stream(connection, names).delete(15)
        with pytest.raises(DataLossError, match=r"contains another message at sequence 14 "):
            await lake.land(names)
        result = await lake.land(names, accept_loss=True)
        assert (result.rows, result.events, result.repeats) == (16, 6, 10)
        assert result.streams[0].incarnation.endswith("#1")
        assert (await lake.land(names)).rows == 0
    assert lake.count("silver") == 21
    lake.assert_counted()


async def landed_more(lake: LandedLake, stream: Stream, first: int) -> LandResult:
    """Land ten further events; each event is in every table once."""
    await stream.publish(events_of(stream.name, first, first + 10))
    result = await lake.land(stream.name)
    assert lake.seqs("bronze", stream.name) == [*range(1, first + 11)]
    assert lake.seqs("silver", stream.name) == [*range(1, first + 11)]
    lake.assert_counted()
    return result


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_checkpoint_that_is_deleted_copied_or_older_loses_and_doubles_nothing(
    lake: LandedLake, stream: Stream, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = lake.folder / "_checkpoints"
    await landed_more(lake, stream, 0)
    shutil.copytree(checkpoints, lake.folder / "copy")
    await landed_more(lake, stream, 10)
    shutil.rmtree(checkpoints)
    shutil.move(lake.folder / "copy", checkpoints)
    assert (await landed_more(lake, stream, 20)).repeats == 0, "a checkpoint that was rolled back"

    shutil.rmtree(checkpoints)
    assert (await landed_more(lake, stream, 30)).events == 10, "a checkpoint that was deleted"

    foreign = lake_at(lake.spark, lake.folder.with_name("other"), nats_url, monkeypatch)
    await foreign.land(stream.name)
    shutil.copytree(foreign.folder / "_checkpoints", checkpoints, dirs_exist_ok=True)
    assert (await landed_more(lake, stream, 40)).repeats == 0, "the checkpoint of another lake"


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_table_that_was_set_back_or_made_anew_gets_what_it_lacks(
    lake: LandedLake, stream: Stream
) -> None:
    await landed_more(lake, stream, 0)
    await landed_more(lake, stream, 10)
    before = {table: lake.rows(table) for table in ("bronze", "silver", "gold")}

    async def assert_healed(table: str) -> None:
        assert lake.rows(table) != before[table]
        await lake.land(stream.name)
        for name, rows in before.items():
            assert sorted(map(repr, lake.rows(name))) == sorted(map(repr, rows)), f"{name}, of {table}"

    for table in before:
        await asyncio.to_thread(lake.sql, f"RESTORE TABLE {{{table}}} TO VERSION AS OF 1")
        await assert_healed(table)
    versions = lake.versions()
    await lake.land(stream.name)
    assert lake.versions() == versions, "each was noticed once"
    await landed_more(lake, stream, 20)

    before = {table: lake.rows(table) for table in before}
    for table in ("silver", "gold"):
        shutil.rmtree(lake.folder / table)
        await assert_healed(table)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_foreign_changes_of_the_tables_stay_and_hinder_nothing(
    lake: LandedLake, stream: Stream
) -> None:
    await landed_more(lake, stream, 0)
    for statement in (
        "OPTIMIZE {bronze}",
        "OPTIMIZE {silver}",
        "VACUUM {bronze}",
        "ALTER TABLE {bronze} ADD COLUMNS (note STRING)",
        "ALTER TABLE {silver} ADD COLUMNS (note STRING)",
        "ALTER TABLE {gold} ADD COLUMNS (note STRING)",
        "UPDATE {silver} SET note = 'seen' WHERE seq < 5",
    ):
        await asyncio.to_thread(lake.sql, statement)
    await landed_more(lake, stream, 10)
    await asyncio.to_thread(lake.sql, "DELETE FROM {bronze} WHERE seq = 7")
    await asyncio.to_thread(lake.sql, "DELETE FROM {silver} WHERE seq = 7")
    await stream.publish([event(stream.name, 20)])
    assert (await lake.land(stream.name)).rows == 1
    assert 7 not in lake.seqs("bronze", stream.name) + lake.seqs("silver", stream.name)


async def test_a_lake_of_release_1_0_is_continued_also_after_a_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipfile.ZipFile(RELEASE_1 / "lake.zip").extractall(tmp_path)
    create = Lake.create

    def die(self: Lake, table: Table) -> None:
        if table is BRONZE:
            raise BrokenPipeError
        create(self, table)

    async with EmbeddedNats(tmp_path / "nats") as server:
        lake = lake_at(spark, tmp_path / "lake", server.url, monkeypatch)
        before = {name: lake.count(name) for name in ("bronze", "silver")}
        assert before == {"bronze": 42, "silver": 20}
        monkeypatch.setattr(Lake, "create", die)
        with pytest.raises(BrokenPipeError):
            await lake.land("orders", "clock")
        monkeypatch.setattr(Lake, "create", create)
        assert lake.count("silver") == 25, "the five ticks that have the IDs of orders"

        result = await lake.land("orders", "clock")
        again = await lake.land("orders", "clock")

    assert (result.rows, result.events, again.rows, again.events) == (3, 2, 0, 0)
    assert [(each.stream, each.last_seq) for each in result.streams] == [("orders", 20), ("clock", 7)]
    places = [(row["stream"], row["incarnation"], row["seq"]) for row in lake.rows("bronze")]
    assert len(places) == len(set(places)) == 45
    assert lake.count("silver") == 27
    assert sum(row["events"] for row in lake.rows("gold")) == 27
    lake.assert_counted()
    for name in ("bronze", "silver", "gold"):
        assert lake.table(name).metadata().configuration["delta.autoOptimize.autoCompact"] == "true"


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_bronze_is_the_beginning_of_the_stream_after_each_of_ten_kills_at_random(
    lake: LandedLake, stream: Stream, nats_url: str
) -> None:
    bodies: list[bytes] = []
    seed = random.randrange(10_000)
    moments = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    for number in range(KILLS):
        events = events_of(stream.name, len(bodies), len(bodies) + EVENTS)
        await stream.publish(events)
        bodies += [each.body for each in events]
        after = moments.uniform(0, KILLED_WITHIN_SECONDS)
        await kill(lake, stream.name, nats_url, after=after, executor_alone=number % 5 == 1)
        assert contents(lake, "bronze", "data") == expected(bodies[: lake.count("bronze")])
        assert contents(lake, "silver", "payload") == expected(bodies[: lake.count("silver")])

    await lake.land(stream.name)
    assert contents(lake, "bronze", "data") == contents(lake, "silver", "payload") == expected(bodies)
    assert sum(row["events"] for row in lake.rows("gold")) == len(bodies)


async def kill(lake: LandedLake, stream: str, url: str, *, after: float, executor_alone: bool) -> None:
    """Kill a run with all its processes so many seconds after its first file, or only its executor."""
    before = len(list(lake.folder.rglob("*.parquet")))
    async with running(lake, stream, url, "local-cluster[1,2,1024]" if executor_alone else "local[2]") as run:
        await eventually(
            lambda: run.returncode is not None or len(list(lake.folder.rglob("*.parquet"))) > before,
            within=START_SECONDS,
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(run.wait(), after)
        if executor_alone:
            for executor in executors(run.pid):
                os.kill(executor, signal.SIGKILL)
            assert await asyncio.wait_for(run.wait(), START_SECONDS) == 0
        else:
            assert run.returncode is None


def executors(group: int) -> list[int]:
    """Return the executors in a process group."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if process.name.isdecimal() and os.getpgid(int(process.name)) == group:
                command = (process / "cmdline").read_bytes()
                found += [int(process.name)] if b"CoarseGrainedExecutorBackend" in command else []
    return found


def contents(lake: LandedLake, table: str, body: str) -> tuple[list[int], str]:
    """Return the sequences in a table in their order, and a hash of their bodies."""
    if not lake.count(table):
        return expected([])
    rows = lake.table(table).to_pyarrow_table(columns=["seq", body]).sort_by("seq")
    return rows["seq"].to_pylist(), sha256(b"".join(rows[body].cast("binary").to_pylist())).hexdigest()


def expected(bodies: list[bytes]) -> tuple[list[int], str]:
    """Return the same of messages that were stored one after the other."""
    return list(range(1, len(bodies) + 1)), sha256(b"".join(bodies)).hexdigest()


@asynccontextmanager
async def running(
    lake: LandedLake, stream: str, url: str, master: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in a process group of its own, and kill all its processes at the end."""
    command = [sys.executable, "-m", "sea_mq_worker", "pipeline", "land", "--lake", str(lake.folder)]
    options = ["--stream", stream, "--batch-rows", str(BATCH), "--master", master]
    with lake.folder.with_suffix(".log").open("ab") as log:
        run = await asyncio.create_subprocess_exec(
            *command,
            *options,
            env=os.environ | {"SEA_MQ_NATS_URL": url},
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
    try:
        yield run
    finally:
        if run.returncode is None:
            os.killpg(run.pid, signal.SIGKILL)
        await run.wait()
