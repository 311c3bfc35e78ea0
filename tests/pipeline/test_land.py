"""Landing brings each message into bronze once, each event into silver once, and counts them in gold."""

import asyncio
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.land import gold
from sea_mq_worker.pipeline.jobs.land.job import write_messages
from sea_mq_worker.pipeline.jobs.land.loss_checks import current_progress
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.jobs.land.tasks import run_tasks
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD, IDS, SILVER
from sea_mq_worker.pipeline.lake.table import ConflictError, LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import ENTRIES, write_files
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.state import stream_state
from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import Lake, copy_of, descriptions, event, events_of
from tests.support.jetstream import connected

EVENTS = 20_000


async def test_a_stream_becomes_bronze_silver_and_gold(
    spark: SparkSession, lake: Lake, stream: Stream
) -> None:
    lake = replace(lake, spark=spark)
    events = events_of(stream.name, EVENTS)
    copies = [copy_of(each) for each in events[::100]]
    await stream.publish([*events, *copies])
    await stream.delete(1, 7, 500, EVENTS + 3)

    before = len(descriptions(spark))
    result = await lake.land(stream.name, batch_rows=EVENTS // 2 + 1000)
    described = descriptions(spark)[: -before or None]
    assert set(described) == {f"Some(land {stream.name} 2-11001: bronze and silver)", "Some(land: gold)"}

    stored = dict(enumerate([*events, *copies], start=1))
    for seq in (1, 7, 500, EVENTS + 3):
        del stored[seq]
    landed = lake.rows(BRONZE)
    assert {row["seq"]: (row["subject"], row["data"]) for row in landed} == {
        seq: (message.subject, message.body) for seq, message in stored.items()
    }
    assert len(landed) == len(stored) == result.rows
    # The first event was deleted, so that its copy is the first to be landed.
    silver = {row["seq"]: row for row in lake.rows(SILVER)}
    assert sorted(silver) == sorted([*(seq for seq in stored if seq <= EVENTS), EVENTS + 1])
    assert result.events == len(silver)
    assert_counted(lake)
    versions = lake.versions()

    assert (await lake.land(stream.name)).rows == 0
    await stream.publish([copy_of(events[5]), event(stream.name, EVENTS)])
    assert await lake.left(stream.name) == 2

    assert lake.versions() == versions
    again = await lake.land(stream.name)
    assert (again.rows, again.events) == (2, 1)
    assert_counted(lake)


def assert_counted(lake: Lake) -> None:
    """Gold tells what silver holds."""
    minutes: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in lake.rows(SILVER):
        minute = row["published_at"].replace(second=0, microsecond=0)
        minutes[row["context"], row["event_type"], minute].append(row)
    gold = {(row["context"], row["event_type"], row["minute"]): row for row in lake.rows(GOLD)}
    assert gold.keys() == minutes.keys()
    assert len(gold) == lake.count(GOLD)
    for key, rows in minutes.items():
        delays = sorted(
            (row["published_at"] - row["occurred_at"]).total_seconds() for row in rows if row["occurred_at"]
        )
        found = gold[key]
        counted = (found["events"], found["late"], found["bytes"], found["date"])
        late = sum(delay > 60 for delay in delays)
        assert counted == (len(rows), late, sum(row["bytes"] for row in rows), key[2].date())
        for share in (50, 95, 99):
            rank = -(-share * len(delays) // 100) - 1
            assert found[f"p{share}_seconds"] == pytest.approx(delays[rank] if delays else None)


async def test_one_event_in_two_streams_is_one_row(lake: Lake, stream: Stream) -> None:
    second = Stream(stream.connection, f"{stream.name}b")
    await second.create()
    await stream.publish(events_of(stream.name, 10))
    subject = f"{second.name}.copy"
    mirrored = [replace(event(stream.name, number), subject=subject) for number in range(5, 15)]
    await second.publish(mirrored)

    result = await lake.land(stream.name, second.name)

    assert (result.rows, result.events) == (20, 15)
    assert len({row["message_id"] for row in lake.rows(SILVER)}) == 15
    await second.publish(map(copy_of, mirrored))
    later = await lake.land(stream.name, second.name, dedupe_days=1)
    assert (later.rows, later.events) == (10, 0)


async def test_a_lake_without_an_index_of_ids_gets_one(lake: Lake, stream: Stream) -> None:
    events = events_of(stream.name, 10)
    await stream.publish(events)
    await lake.land(stream.name)
    shutil.rmtree(lake.folder / "ids")
    await stream.publish([copy_of(events[3]), event(stream.name, 10)])

    again = await lake.land(stream.name)

    assert (again.rows, again.events) == (2, 1)
    assert lake.count(IDS) == 12


async def test_a_run_that_needs_more_space_than_is_free_does_not_begin(
    lake: Lake, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.publish([Published(f"{stream.name}.x", {}, bytes(300_000)) for _ in range(10)])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))

    with pytest.raises(PipelineError, match="has 1 MiB of free space, 1 MiB are needed"):
        await lake.land(stream.name)

    assert lake.rows(BRONZE) == []


async def test_a_file_that_is_gone_from_the_lake_is_reported(lake: Lake, stream: Stream) -> None:
    await stream.publish(events_of(stream.name, 10))
    await lake.land(stream.name)
    [file] = (lake.folder / "ids").glob("*.parquet")
    file.unlink()
    await stream.publish([copy_of(event(stream.name, 3))])

    with pytest.raises(PipelineError, match=f"ids cannot be read or written: .*{file.name}"):
        await lake.land(stream.name)


async def test_what_arrives_during_a_run_is_landed_by_the_next(
    lake: Lake, stream: Stream, nats_url: str
) -> None:
    await stream.publish(events_of(stream.name, 100))
    seen: list[str] = []

    def arrive(progress: str) -> None:
        seen.append(progress)
        asyncio.run(publish_one(nats_url, stream.name, event(stream.name, 1000 + len(seen))))

    first = await lake.land(stream.name, on_progress=arrive, batch_rows=60)

    ends = (" 60 messages,", ", 40 left"), (" 100 messages,", ", 0 left")
    assert all(a in text and text.endswith(b) for text, (a, b) in zip(seen, ends, strict=True))
    assert (first.rows, first.events) == (100, 100)
    last = await lake.land(stream.name, compact_files=1, vacuum_hours=1)
    assert (last.rows, last.compacted) == (2, 3)
    assert len(lake.rows(SILVER)) == 102
    assert_counted(lake)


async def publish_one(url: str, stream: str, message: Published) -> None:
    async with connected(url) as connection:
        await Stream(connection, stream).publish([message])


async def test_a_run_that_died_between_two_steps_is_caught_up(lake: Lake, stream: Stream) -> None:
    without_context = f"{stream.name}.other"
    odd = [
        Published(without_context, {"ce-type": "t", "ce-time": "yesterday"}, b"\xff"),
        Published(without_context, {"ce-time": "0001-01-01T00:00:00Z"}, b""),
    ]
    await stream.publish([*odd, *events_of(stream.name, 298)])
    await asyncio.to_thread(land_bronze_alone, lake, stream.name, 200)

    def die(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await lake.land(stream.name, on_progress=die)
    assert len(lake.rows(BRONZE)) == len(lake.rows(SILVER)) == 300
    assert lake.rows(GOLD) == []

    assert (await lake.land(stream.name)).rows == 0
    assert_counted(lake)


async def test_a_commit_of_silver_whose_answer_is_lost_keeps_its_files(
    lake: Lake, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = LakeTable._sync
    lost: list[str] = []

    def sync_without_answer(self: LakeTable, version: int) -> None:
        sync(self, version)
        if version and self.table_schema is SILVER and not lost:
            lost.append(self.uri)
            raise CommitFailedError("the version exists")

    monkeypatch.setattr(LakeTable, "_sync", sync_without_answer)
    await stream.publish(events_of(stream.name, 10))

    await lake.land(stream.name)

    assert lost
    assert len(lake.rows(SILVER)) == 10
    assert_counted(lake)


def land_bronze_alone(lake: Lake, stream: str, rows: int) -> None:
    """Do a run's first step, and prove that another run cannot do it again with other bounds."""
    bronze, state = lake.table(BRONZE), stream_state(lake.settings, stream)
    place = current_progress(lake.settings, bronze, state, on_loss=pytest.fail)
    options = JetStreamOptions(stream=stream, created=state.created)
    written = write_messages(str(lake.folder), options, place.incarnation, frozenset(), range(1, rows + 1))
    files = bronze.files(pa.Table.from_batches(written, ENTRIES))
    bronze.commit(files, *place.landed_to(rows))
    with pytest.raises(ConflictError, match="another run writes to this table"):
        bronze.commit(files, *place.landed_to(rows + 1))


def test_gold_counts_every_minute_once_whichever_is_counted_again_and_while_another_run_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver, first = LakeTable(str(tmp_path), SILVER), StreamProgress(stream="S", created=1)
    other = replace(first, stream="T")
    noon, minutes = datetime(2026, 1, 1, 12, tzinfo=UTC), (5, 1, 2, 0, 1, 60, 30)

    def add(progress: StreamProgress, seq: int, minute: int) -> None:
        row = {"stream": progress.stream, "incarnation": progress.incarnation, "seq": seq, "event_type": "t"}
        row |= {"published_at": noon + timedelta(minutes=minute), "date": noon.date(), "bytes": 1}
        written = write_files(silver.lake, [(SILVER, pa.RecordBatch.from_pylist([row], SILVER.schema))])
        silver.commit(silver.files(pa.Table.from_batches(written)), Watermark(progress.name, seq))

    def refresh(progress: StreamProgress) -> None:
        gold.refresh(None, str(tmp_path), [progress], late_seconds=60)

    def after_another(*given: Any, **options: Any) -> pa.Table:
        entries = run_tasks(*given, **options)
        monkeypatch.setattr(gold, "run_tasks", run_tasks)
        refresh(other)
        return entries

    add(other, 1, minutes[0])
    monkeypatch.setattr(gold, "run_tasks", after_another)
    for seq, minute in enumerate(minutes, start=1):
        add(first, seq, minute)
        refresh(first)

    counted = LakeTable(str(tmp_path), GOLD).peek((), ["minute", "events"]).to_pylist()
    expected = Counter(noon + timedelta(minutes=minute) for minute in (minutes[0], *minutes))
    assert len(counted) == len(expected)
    assert {row["minute"]: row["events"] for row in counted} == expected
