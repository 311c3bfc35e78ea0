"""A loss of the stream is never skipped in silence; an interrupted run loses and doubles nothing."""

import asyncio
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats, free_port
from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.jobs.land.loss_checks import check_after_read
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress, incarnations, progress_of
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD, SILVER, TableSchema
from sea_mq_worker.pipeline.lake.table import NO_FILES, LakeTable
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import Lake, copy_of, event, events_of, lake_at
from tests.support.documents import commands
from tests.support.jetstream import connected
from tests.support.waiting import eventually
from tests.unit.test_nats import stream as stream_info

EVENTS = 30_000
BATCH = 12_000  # more than one process lands without Spark
BATCHES = 3
START_SECONDS = 240
KILLS = 10
WAYS = ((("--batch-rows", "2000"), 1.5), (("--master", "local[2]"), 4.0))
"""Options without and with Spark; the seconds from a run's first file, in which the run cannot end."""


async def test_a_stream_made_again_is_landed_only_when_the_loss_is_accepted(
    lake: Lake, stream: Stream
) -> None:
    other = Stream(stream.connection, f"{stream.name}b")
    await other.create()
    await stream.publish(events_of(stream.name, 10))
    await lake.land(stream.name)
    await stream.drop()
    await stream.create()
    await stream.publish(events_of(stream.name, 8, 13))
    await other.publish([event(other.name, 1)])
    assert await lake.left(stream.name) == 5

    with pytest.raises(
        DataLossError, match=rf"stream {stream.name} was deleted and created again: sequence 10 of"
    ):
        await lake.land(stream.name, other.name)

    assert len(lake.rows(BRONZE)) == 11, "the other stream was landed"
    result = await lake.land(stream.name, other.name, accept_loss=True)
    assert (result.rows, result.events) == (5, 3)
    assert len(result.missing) == 1
    assert len({row["incarnation"] for row in lake.rows(BRONZE) if row["stream"] == stream.name}) == 2
    again = await lake.land(stream.name, other.name)
    assert (again.rows, again.missing) == (0, ())


async def test_what_retention_removed_is_named(lake: Lake, stream: Stream) -> None:
    await stream.publish(events_of(stream.name, 10))
    await lake.land(stream.name)
    await stream.publish(events_of(stream.name, 10, 20))
    await stream.purge(seq=16)
    assert await lake.left(stream.name) == 5

    with pytest.raises(DataLossError, match=r"sequences 11 to 15 were removed .* continue from sequence 16"):
        await lake.land(stream.name)

    result = await lake.land(stream.name, accept_loss=True)
    assert (result.rows, len(result.missing)) == (5, 1)
    assert sorted(row["seq"] for row in lake.rows(BRONZE)) == [*range(1, 11), *range(16, 21)]
    await stream.purge()
    assert (await lake.land(stream.name)).rows == 0, "what was landed may be removed"


def test_a_stream_that_is_made_again_or_restored_during_a_read_is_not_landed() -> None:
    before = stream_info(messages=9, first_seq=1, last_seq=9)
    changes = ({"created": "2026-11-01T12:00:00Z"}, "deleted and created"), ({"last_seq": 8}, "was restored")
    for change, why in changes:
        now, landed = dataclasses.replace(before, **change), StreamProgress(stream="S", created=0)
        with pytest.raises(DataLossError, match=rf"{why} .* during the read"):
            check_after_read(landed, before, now, range(1, 10), rows=9, on_loss=pytest.fail)


def test_what_is_removed_during_a_read_is_lost_only_after_the_first_landing() -> None:
    before, lost = stream_info(messages=9, first_seq=1, last_seq=9), []
    now = dataclasses.replace(before, first_seq=5)
    for landed, rows in ((0, 5), (1, 8), (1, 5)):
        progress = StreamProgress(stream="S", created=0, landed=landed)
        check_after_read(progress, before, now, range(2, 10), rows=rows, on_loss=lost.append)
    assert [text.partition(" were")[0] for text in lost] == ["stream S: sequences 2 to 4"]


def test_no_incarnation_is_forgotten_when_former_streams_return(tmp_path: Path) -> None:
    bronze, seen = LakeTable(str(tmp_path), BRONZE), []
    for created in (1, 2, 3, 2, 1, 3, 4, 1):
        switch = progress_of(bronze, "S").recreated(created, incarnations(bronze, "S"))
        bronze.commit(NO_FILES, *switch)
        seen = [each for each in seen if each != created] + [created]
        assert [each.created for each in incarnations(bronze, "S")] == seen
    for _ in range(2):
        bronze.commit(NO_FILES, *progress_of(bronze, "S").restored())
    assert [each.restores for each in incarnations(bronze, "S") if each.created == 1] == [0, 1, 2]


async def test_a_stream_restored_to_an_older_state_is_found_also_after_another_stream_had_its_name(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, port = tmp_path / "nats", free_port()
    home.mkdir()
    lake = lake_at(tmp_path / "lake", f"nats://127.0.0.1:{port}", monkeypatch)

    async def put(first: int, behind: int) -> None:
        async with connected(lake.settings.nats_url.get_secret_value()) as connection:
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
        assert (result.rows, result.events) == (16, 6)
        assert result.streams[0].incarnation.endswith("#1")
        assert (await lake.land(names)).rows == 0
        assert len(lake.rows(SILVER)) == 21
        async with connected(f"nats://127.0.0.1:{port}") as connection:
            await Stream(connection, names).drop()
            await Stream(connection, names).create()
        await lake.land(names, accept_loss=True)
    shutil.rmtree(home / "jetstream")
    shutil.move(tmp_path / "backup", home / "jetstream")
    async with EmbeddedNats(home, port=port):
        await put(30, 40)
        result = await lake.land(names, accept_loss=True)
        assert (result.rows, result.events, len(result.missing)) == (20, 10, 2)
        assert result.streams[0].incarnation.endswith("#2")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_command_of_the_document_lands_each_message_once_until_it_is_asked_to_end(
    lake: Lake, stream: Stream, nats_url: str
) -> None:
    events = events_of(stream.name, EVENTS)
    await stream.publish([*events, *(copy_of(each) for each in events[::50])])
    [shown] = commands("docs/how-to/pipeline.md", "Land for months")
    options = shown.text.partition("--lake lake ")[2].replace("/var/lib/node_exporter", str(lake.folder))

    async with running(lake, stream.name, nats_url, *options.split(), "--json") as run:
        await eventually(
            lambda: silver_batches(lake) == BATCHES or run.returncode is not None, within=START_SECONDS
        )
        run.send_signal(signal.SIGTERM)
        told, _ = await asyncio.wait_for(run.communicate(), START_SECONDS)

    assert run.returncode == 0, (lake.folder / "log").read_text()
    assert json.loads(told)["streams"][0]["left"] == 0
    lag = f'sea_mq_pipeline_lag_sequences{{stream="{stream.name}",task="land"}} 0.0'
    assert lag in (lake.folder / "land.prom").read_text()
    assert (await lake.land(stream.name)).rows == 0
    bodies = [message.body for message in events]
    assert contents(lake, BRONZE, "data") == expected([*bodies, *bodies[::50]])
    assert contents(lake, SILVER, "payload") == expected(bodies)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_bronze_is_the_beginning_of_the_stream_after_each_of_ten_kills_at_random(
    lake: Lake, stream: Stream, nats_url: str
) -> None:
    bodies: list[bytes] = []
    for kill in range(KILLS):
        events = events_of(stream.name, len(bodies), len(bodies) + EVENTS)
        await stream.publish(events)
        bodies += [each.body for each in events]
        await kill_at_random(lake, stream.name, nats_url, *WAYS[kill % len(WAYS)])
        assert contents(lake, BRONZE, "data") == expected(bodies[: lake.count(BRONZE)])
        assert contents(lake, SILVER, "payload") == expected(bodies[: lake.count(SILVER)])

    await lake.land(stream.name)
    assert contents(lake, BRONZE, "data") == contents(lake, SILVER, "payload") == expected(bodies)
    assert sum(row["events"] for row in lake.rows(GOLD)) == len(bodies)


async def kill_at_random(
    lake: Lake, stream: str, url: str, options: Sequence[str], within_seconds: float
) -> None:
    """Kill a run with all its processes, some time after its first file."""
    before = len(list(lake.folder.rglob("*.parquet")))
    async with running(lake, stream, url, *options) as run:
        await eventually(
            lambda: run.returncode is not None or len(list(lake.folder.rglob("*.parquet"))) > before,
            within=START_SECONDS,
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.wait(), random.uniform(0, within_seconds))


def contents(lake: Lake, table_schema: TableSchema, body: str) -> tuple[list[int], str]:
    """Return the sequences in a table in their order, and a hash of their bodies."""
    table = lake.table(table_schema).open()
    if table is None:
        return expected([])
    rows = table.to_pyarrow_table(columns=["seq", body]).sort_by("seq")
    return rows["seq"].to_pylist(), sha256(b"".join(rows[body].cast("binary").to_pylist())).hexdigest()


def expected(bodies: Sequence[bytes]) -> tuple[list[int], str]:
    """Return the same of messages that were stored one after the other."""
    return list(range(1, len(bodies) + 1)), sha256(b"".join(bodies)).hexdigest()


def silver_batches(lake: Lake) -> int:
    """Count what silver was committed to after its creation; to open the table for that takes longer."""
    return max(0, len(list((lake.folder / "silver" / "_delta_log").glob("*.json"))) - 1)


@asynccontextmanager
async def running(
    lake: Lake, stream: str, url: str, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in a process group of its own, and kill all its processes at the end."""
    command = [sys.executable, "-m", "sea_mq_worker", "pipeline", "land", "--lake", str(lake.folder)]
    common = ["--stream", stream, "--batch-rows", str(BATCH)]
    environment = os.environ | {"SEA_MQ_NATS_URL": url}
    with (lake.folder / "log").open("ab") as log:
        run = await asyncio.create_subprocess_exec(
            *command,
            *common,
            *options,
            env=environment,
            start_new_session=True,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        yield run
    finally:
        if run.returncode is None:
            os.killpg(run.pid, signal.SIGKILL)
        await run.wait()
