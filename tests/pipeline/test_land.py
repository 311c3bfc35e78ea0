"""Landing brings each message into bronze once, each event into silver once, and counts them in gold."""

import asyncio
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from sea_mq_worker.dev.servers import free_port
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.erase import id_hash
from sea_mq_worker.pipeline.lake import ERASED, Lake
from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import LandedLake, copy_of, event, events_of
from tests.support.waiting import eventually


async def test_each_message_is_in_bronze_once_and_each_event_in_silver_once(
    lake: LandedLake, stream: Stream
) -> None:
    odd = [
        Published(f"{stream.name}.other", {"ce-type": "t", "ce-time": "yesterday"}, b"\xff"),
        Published(f"{stream.name}.other", {"ce-time": "0001-01-01T00:00:00Z"}, b""),
    ]
    events = events_of(stream.name, 300)
    copies = [copy_of(each) for each in events[::10]]
    changed = replace(copy_of(events[4]), body=b'{"number": 4}')
    await stream.publish([*events, *odd, *copies, changed])
    await stream.delete(1, 7, 50, 310)
    progress: list[str] = []

    result = await lake.land(stream.name, batch_rows=200, on_progress=progress.append)

    stored = dict(enumerate([*events, *odd, *copies, changed], start=1))
    for seq in (1, 7, 50, 310):
        del stored[seq]
    landed = lake.rows("bronze")
    assert {row["seq"]: (row["subject"], row["data"]) for row in landed} == {
        seq: (message.subject, message.body) for seq, message in stored.items()
    }
    assert len(landed) == len(stored) == result.rows
    assert [text.partition(" after")[0] for text in progress] == [
        f"land {stream.name}: {count} messages" for count in (198, 131)
    ]
    # The first event was deleted, so that its copy is the first to be landed.
    assert lake.seqs("silver", stream.name) == [seq for seq in stored if seq <= 303]
    assert (result.events, result.repeats, result.differing) == (300, 29, 1)
    lake.assert_counted()
    versions = lake.versions()

    again = await lake.land(stream.name)

    assert (again.rows, again.events, lake.versions()) == (0, 0, versions)
    await stream.publish([copy_of(events[5]), event(stream.name, 300)])
    later = await lake.land(stream.name)
    assert (later.rows, later.events, later.repeats, later.differing) == (2, 1, 1, 0)
    assert later.streams[0].left == 0
    lake.assert_counted()


def plain(stream: str, number: int) -> Published:
    """Return a message of a producer that numbers its messages."""
    return Published(f"{stream}.tick", {"Nats-Msg-Id": str(number)}, f"{stream} {number}".encode())


async def test_an_id_counts_once_in_all_streams_if_it_is_a_uuid_and_otherwise_once_in_its_stream(
    lake: LandedLake, stream: Stream
) -> None:
    second = Stream(stream.connection, f"{stream.name}b")
    await second.create()
    gone = event(stream.name, 99)
    tables = Lake(lake.spark, str(lake.folder))
    tables.create(ERASED)
    rows = [(id_hash(gone.headers["ce-id"]),)]
    tables.insert_new(
        ERASED.name, lake.spark.createDataFrame(rows, "id_sha256 STRING"), "t.id_sha256 = s.id_sha256"
    )
    numbers = range(1, 6)
    await stream.publish([*events_of(stream.name, 10), *(plain(stream.name, each) for each in numbers)])
    mirrored = [replace(event(stream.name, each), subject=f"{second.name}.copy") for each in range(5, 15)]
    await second.publish([*mirrored, *(plain(second.name, each) for each in numbers)])
    await stream.publish(
        [gone, Published(f"{stream.name}.a", {"Dlq-Message-Id": gone.headers["ce-id"]}, b"")]
    )
    # An ID with what SQL and formats treat specially.
    await second.publish([Published(f"{second.name}.odd", {"ce-id": "{it}'s \\ ü;"}, b"")])

    result = await lake.land(stream.name, second.name)

    assert (result.rows, result.events, result.repeats, result.differing) == (31, 26, 5, 0)
    silver = lake.rows("silver")
    assert sum(row["message_id"] in map(str, numbers) for row in silver) == 10
    assert sum(row["events"] for row in lake.rows("gold")) == 26
    lake.assert_counted()
    again = Published(f"{second.name}.tick", {"ce-id": "2"}, f"{second.name} 2".encode())
    await second.publish([*map(copy_of, mirrored), again])
    later = await lake.land(stream.name, second.name, dedupe_days=1)
    assert (later.rows, later.events, later.repeats) == (11, 0, 11)
    assert await lake.left(stream.name) == 2, "erased messages at the end are read again"


async def test_a_lake_may_be_a_schema_of_a_catalog(lake: LandedLake, stream: Stream, tmp_path: Path) -> None:
    in_catalog = replace(lake, folder=Path(f"catalog:spark_catalog.{stream.name}"))
    await asyncio.to_thread(lake.sql, f"CREATE SCHEMA {stream.name} LOCATION '{tmp_path / 'tables'}'")
    await stream.publish(events_of(stream.name, 20))
    with pytest.raises(PipelineError, match="name a folder by --checkpoints"):
        await in_catalog.land(stream.name)
    checkpoints = str(tmp_path / "checkpoints")

    landed = await in_catalog.land(stream.name, checkpoints=checkpoints)
    again = await in_catalog.land(stream.name, checkpoints=checkpoints)

    assert (landed.rows, landed.events, again.rows, again.events) == (20, 20, 0, 0)
    tables = await asyncio.to_thread(lake.sql, f"SHOW TABLES IN {stream.name}")
    assert {row["tableName"] for row in tables} == {"bronze", "silver", "gold"}


@pytest.mark.long
async def test_a_query_that_goes_on_lands_what_arrives_until_it_is_stopped(
    lake: LandedLake, stream: Stream
) -> None:
    stop, port, progress = threading.Event(), free_port(), list[str]()
    run = asyncio.create_task(
        lake.land(
            stream.name, every=0.5, stop=stop, metrics=f"127.0.0.1:{port}", vacuum_hours=200,
            on_progress=progress.append,
        )
    )  # fmt: skip
    try:
        await stream.publish(events_of(stream.name, 20))
        await eventually(lambda: run.done() or lake.count("gold") > 0, within=240)
        await stream.publish(events_of(stream.name, 20, 40))
        await eventually(lambda: run.done() or lake.count("silver") == 40, within=240)
        # Someone sets the table back; what it lacks then is read again.
        await asyncio.to_thread(lake.sql, "RESTORE TABLE {bronze} TO VERSION AS OF 1")
        await stream.publish(events_of(stream.name, 40, 50))
        await eventually(lambda: run.done() or lake.count("silver") == 50, within=240)
        page = await asyncio.to_thread(scraped, port)
    finally:
        stop.set()
    result = await run

    assert lake.seqs("bronze", stream.name) == [*range(1, 51)]
    assert result.streams[0].last_seq == 50
    lake.assert_counted()
    labels = f'{{stream="{stream.name}",task="land"}}'
    assert f"sea_mq_pipeline_rows{labels}" in page
    assert f"sea_mq_pipeline_last_success_timestamp_seconds{labels}" in page
    assert any("begins again in" in text for text in progress)


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


async def test_an_address_for_metrics_that_cannot_be_used_is_refused(lake: LandedLake) -> None:
    with pytest.raises(PipelineError, match=r"--metrics 127\.0\.0\.1:x: cannot serve there"):
        await lake.land("any", metrics="127.0.0.1:x")
