"""Two runs that land a stream in one lake at once lose and double nothing, from the first table on."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.typed import load_event_schemas
from sea_mq_worker.pipeline.lake import BRONZE, ERASED, GOLD, SILVER, Lake
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import LandedLake, copy_of, event, events_of
from tests.support.waiting import eventually

AT_START, LATER, ROUNDS = 200, 60, 4
SCHEMA = {"type": "object", "properties": {"number": {"type": "integer", "multipleOf": 5}}}
TYPED = ("typed/order.paid.v1", "typed/quarantine")
OTHER_RUN = """
import json, sys, threading
from pathlib import Path
from sea_mq_worker.pipeline import land, register
from sea_mq_worker.pipeline.jobs.typed import load_event_schemas
from sea_mq_worker.pipeline.session import spark_session
from sea_mq_worker.settings import load_settings

options = json.loads(sys.argv[1])
schemas = load_event_schemas(Path(options.pop("folder")))
with spark_session("other", master="local[2]") as spark:
    register(spark)
    print("ready", flush=True)
    sys.stdin.readline()
    stop, progress = threading.Event(), []
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    result = land(spark, load_settings(), stop=stop, schemas=schemas, on_progress=progress.append, **options)
print(json.dumps([result.rows, result.events, sum("begins again" in text for text in progress)]), flush=True)
"""
"""Land as the command does, but begin at a line on stdin, and end at stdin's end."""


@asynccontextmanager
async def beside(log: Path, **options: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run another process that is ready to land."""
    with log.open("ab") as stderr:
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OTHER_RUN, json.dumps(options),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    try:
        assert run.stdout
        assert await run.stdout.readline() == b"ready\n"
        yield run
    finally:
        if run.returncode is None:
            run.kill()
        await run.wait()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", [False, True], ids=["own checkpoints", "one checkpoint"])
async def test_two_runs_at_once_land_each_message_once_in_every_table(
    lake: LandedLake, stream: Stream, tmp_path: Path, *, shared: bool
) -> None:
    (tmp_path / "order.paid.v1.json").write_text(json.dumps(SCHEMA))
    given = {"lake": str(lake.folder), "streams": [stream.name], "every": 0.1, "batch_rows": 40}
    places = [None, None] if shared else [str(tmp_path / "one"), str(tmp_path / "two")]
    stop, progress = threading.Event(), list[str]()
    await stream.publish(events_of(stream.name, AT_START))
    end = AT_START + ROUNDS * LATER

    async with beside(tmp_path / "other.log", folder=str(tmp_path), checkpoints=places[1], **given) as other:
        assert other.stdin
        assert other.stdout
        run = asyncio.create_task(
            lake.land(
                stream.name, stop=stop, schemas=load_event_schemas(tmp_path), checkpoints=places[0],
                on_progress=progress.append, **given,
            )
        )  # fmt: skip
        other.stdin.write(b"\n")

        def landed(count: int) -> bool:
            return run.done() or other.returncode is not None or lake.count("bronze") >= count

        for first in range(AT_START, end, LATER):
            await eventually(lambda: landed(first), within=240)  # noqa: B023 - awaited here
            copies = [copy_of(event(stream.name, each)) for each in range(first - 5, first)]
            await stream.publish([*copies, *events_of(stream.name, first, first + LATER)])
        await eventually(lambda: landed(end + ROUNDS * 5) and lake.count("silver") >= end, within=240)
        stop.set()
        other.stdin.close()
        result = await run
        rows, events, given_way = json.loads(await other.stdout.readline())
        assert await other.wait() == 0

    again = await lake.land(stream.name, schemas=load_event_schemas(tmp_path))
    assert (again.rows, again.events, again.typed, again.violations) == (0, 0, 0, 0)
    assert lake.seqs("bronze", stream.name) == [*range(1, end + ROUNDS * 5 + 1)]
    assert len(lake.seqs("silver", stream.name)) == end
    lake.assert_counted()
    numbers = [number for number in range(end) if number % 3 == 0]
    of_typed, of_quarantine = (sorted(row["_seq"] for row in lake.rows(name)) for name in TYPED)
    assert len(of_typed) == len(set(of_typed)) == sum(number % 5 == 0 for number in numbers)
    assert len(of_typed + of_quarantine) == len({*of_typed, *of_quarantine}) == len(numbers)
    assert (result.rows + rows, result.events + events) == (end + ROUNDS * 5, end)
    given_way += sum("begins again" in text for text in progress)
    assert min(result.rows, rows) > 0 or given_way, "the runs never met"


def test_tables_are_created_by_several_runs_at_once(spark: SparkSession, tmp_path: Path) -> None:
    lake, failures = Lake(spark, str(tmp_path / "lake")), list[BaseException]()
    together = threading.Barrier(4)

    def create() -> None:
        try:
            together.wait()
            for table in (BRONZE, SILVER, GOLD, ERASED):
                lake.create(table)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert all(lake.read(table.name).columns == table.columns for table in (BRONZE, SILVER, GOLD, ERASED))


def test_names_of_events_are_told_apart_in_a_catalog(spark: SparkSession) -> None:
    lake = Lake(spark, "catalog:main.events")
    names = ("order.paid.v1", "order_paid.v1", "order-paid.v1", "Order.paid.v1", "ordér.paid.v1")
    tables = [lake.table(f"typed/{name}") for name in names]
    assert tables[0] == "`main`.`events`.`typed_order_paid_v1`"
    assert len({table.lower() for table in tables}) == len(names)
    assert [lake.table(table.name) for table in (BRONZE, ERASED)] == [
        "`main`.`events`.`bronze`",
        "`main`.`events`.`erased`",
    ]
