"""A table of the lake, in a folder or an object store, takes files once and shows only what was committed."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from multiprocessing import get_context
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.dev.servers import free_port
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD, SILVER
from sea_mq_worker.pipeline.lake.table import NO_FILES, ConflictError, Files, LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import groups_to_merge, write_files
from tests.support.waiting import answered

STEPS = 12
BUCKET = "the-lake"
KEY = "AKIDNOTTOBESEEN"


def messages(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Return bronze rows, one a second from 1970 on."""
    return spark.range(first, last + 1).select(
        F.col("id").alias("seq"),
        F.lit("sea.event.order.paid.v1").alias("subject"),
        F.timestamp_seconds("id").alias("time"),
        F.array(F.struct(F.lit("a").alias("key"), F.lit("b").alias("value"))).alias("headers"),
        F.lit("{}").cast("binary").alias("data"),
        F.lit("first").alias("incarnation"),
        F.lit("SEA_EVENTS").alias("stream"),
        F.to_date(F.timestamp_seconds("id")).alias("date"),
    )


def test_pyarrow_finds_rows_by_a_column_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    table.commit(table.write(messages(spark, 1, 10)), Watermark("land", 10))

    is_of_order = pc.field("subject") == "sea.event.order.paid.v1"
    found = opened(table).to_pyarrow_dataset().to_table(filter=is_of_order)

    assert found.num_rows == 10


def test_a_table_of_another_version_gets_the_columns_that_it_lacks_and_keeps_its_own(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), GOLD)
    day = date(2026, 1, 1)
    other = [field for field in GOLD.schema if field.name != "late"] + [pa.field("other", pa.int64())]
    rows = pa.Table.from_pylist([{"event_type": "t", "other": 7, "date": day}], pa.schema(other))
    write_deltalake(table.uri, rows, partition_by=list(GOLD.partition_by))
    row = pa.RecordBatch.from_pylist([{"event_type": "t", "late": 3, "date": day}], GOLD.schema)
    written = write_files(str(tmp_path), [(GOLD, row)])

    table.commit(table.files(pa.Table.from_batches(written)), Watermark("test", 1))
    assert table.compact(files_max=1) == 1

    found = opened(table).to_pyarrow_table().select(["late", "other"]).to_pylist()
    assert sorted(found, key=str) == [{"late": 3, "other": None}, {"late": None, "other": 7}]
    assert table.peek([("date", "=", day), ("late", "=", 3)], ["late", "p50_seconds"]).to_pylist() == [
        {"late": 3, "p50_seconds": None}
    ]


class Merged(LakeTable):
    """A table whose files another run merges once it is open here."""

    def open(self) -> DeltaTable | None:
        found = super().open()
        LakeTable(self.lake, self.table_schema).compact(files_max=1)
        return found


def test_files_are_listed_as_of_one_version_while_another_run_merges_them(tmp_path: Path) -> None:
    table, day = LakeTable(str(tmp_path), GOLD), date(2026, 1, 1)
    for value in range(1, 4):
        row = pa.RecordBatch.from_pylist([{"event_type": "t", "date": day}], GOLD.schema)
        written = pa.Table.from_batches(write_files(str(tmp_path), [(GOLD, row)]))
        table.commit(table.files(written), Watermark("test", value))

    entries = Merged(str(tmp_path), GOLD).entries()

    assert entries["rows"].to_pylist() == [1, 1, 1]
    assert table.entries()["rows"].to_pylist() == [3]


def test_other_readers_find_a_time_between_two_milliseconds(tmp_path: Path) -> None:
    table, moment = LakeTable(str(tmp_path), GOLD), datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)
    row = pa.RecordBatch.from_pylist([{"minute": moment, "date": moment.date()}], GOLD.schema)
    written = pa.Table.from_batches(write_files(str(tmp_path), [(GOLD, row)]))
    table.commit(table.files(written), Watermark("test", 1))

    assert opened(table).to_pyarrow_dataset().count_rows(filter=pc.field("minute") == moment) == 1


def test_a_condition_without_a_value_is_none(tmp_path: Path) -> None:
    table, day = LakeTable(str(tmp_path), GOLD), date(2026, 1, 1)
    row = pa.RecordBatch.from_pylist([{"event_type": "t", "date": day}], GOLD.schema)
    written = pa.Table.from_batches(write_files(str(tmp_path), [(GOLD, row)]))
    table.commit(table.files(written), Watermark("test", 1))

    for name in ("context", "date", "minute", "event_type"):
        assert len(table.paths([(name, ">=", None)])) == 1
        assert table.peek([("date", "=", day), (name, ">=", None)], ["event_type"]).num_rows == 1


def test_what_a_deletion_leaves_can_be_filtered_by_its_texts(tmp_path: Path) -> None:
    table, day = LakeTable(str(tmp_path), GOLD), date(2026, 1, 1)
    rows = [{"event_type": each, "date": day} for each in ("a", "b", "c", None)]
    written = write_files(str(tmp_path), [(GOLD, pa.RecordBatch.from_pylist(rows, GOLD.schema))])
    table.commit(table.files(pa.Table.from_batches(written)), Watermark("test", 1))

    assert [table.delete([("event_type", "in", ["a", "x"])]) for _ in range(2)] == [1, 0]

    found = opened(table).to_pyarrow_dataset()
    assert found.count_rows() == 3
    assert found.count_rows(filter=pc.field("event_type") == "b") == 1
    assert table.watermarks()("test") == 1


def test_a_commit_is_refused_where_another_run_has_gone_on(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    table.commit(table.write(messages(spark, 1, 10)), Watermark("land", 10, after=0))
    again = table.write(messages(spark, 1, 10))

    with pytest.raises(ConflictError, match=r"'land' is at 10, not at 5: another run writes to"):
        table.commit(again, Watermark("land", 20, after=5))

    assert not table.commit(again, Watermark("land", 10, after=0))
    assert not table.commit(again, Watermark("land", 9))
    assert table.commit(NO_FILES, Watermark("land", 20, after=10))
    assert table.read(spark).count() == 10
    assert table.watermarks()("land") == 20


def test_marks_outlive_the_log_of_the_commits_that_made_them(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    table.commit(NO_FILES, Watermark("early", 7))
    for value in range(1, 20):
        table.commit(NO_FILES, Watermark("land", value))
    opened(table).create_checkpoint()
    for entry in sorted(Path(table.uri, "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()

    assert [*map(table.watermarks(), ("early", "land", "none"))] == [7, 19, 0]


def test_a_commit_and_all_that_it_stands_on_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(Path(f"/proc/self/fd/{handle}").readlink()))
    table = LakeTable(str(tmp_path), BRONZE)

    table.commit(NO_FILES, Watermark("land", 1))

    assert synced == {tmp_path, *tmp_path.rglob("*")}
    synced.clear()
    table.sync()
    assert Path(table.uri, "_delta_log", f"{1:020}.json") in synced


def test_of_two_processes_that_commit_one_step_exactly_one_does(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    written = table.write(messages(spark, 1, 400).repartition(2 * STEPS))
    assert len(written.actions) == 2 * STEPS
    mine, other = written.actions[:STEPS], written.actions[STEPS:]

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        racing = [processes.submit(race, str(tmp_path), actions) for actions in (mine, other)]
        won, lost = zip(*(each.result() for each in racing), strict=True)

    assert sum(won) == STEPS
    assert sum(lost) == STEPS
    assert table.watermarks()("land") == STEPS
    assert table.read(spark).count() == rows_of(table)


def race(lake: str, actions: tuple[AddAction, ...]) -> tuple[int, int]:
    """Try to make every step; return how many were made here and how many elsewhere."""
    won, table = 0, LakeTable(lake, BRONZE)
    for step, action in enumerate(actions, start=1):
        with suppress(ConflictError):
            won += table.commit(Files((action,), 0), Watermark("land", step, after=step - 1))
    return won, len(actions) - won


def test_names_of_any_sort_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "a lake [of] {all} *?#% sorts, ü:"
    table = LakeTable(str(lake), BRONZE)
    streams = ["plain", "ä/ö=%20:b", "[x]*?", "a b", None]
    rows = reduce(DataFrame.unionAll, (messages(spark, 1, 3).withColumn("stream", F.lit(s)) for s in streams))
    for value in range(3):
        table.commit(table.write(rows), Watermark("land", value + 1))

    assert table.compact(files_max=1) == len(streams)

    assert Counter(table.peek((), ["stream"])["stream"].to_pylist()) == dict.fromkeys(streams, 9)
    assert {*table.peek([("stream", "=", streams[1])], ["stream"])["stream"].to_pylist()} == {streams[1]}
    found = table.read(spark, [("stream", "=", "[x]*?")])
    assert [r["stream"] for r in found.collect()] == ["[x]*?"] * 9
    assert opened(table).to_pyarrow_table().num_rows == 45
    replaced = [path for path in table.paths() if "plain" not in path]
    table.commit(NO_FILES, Watermark("land", 9), replaced=replaced)
    assert {r["stream"] for r in table.read(spark).collect()} == {"plain"}
    with pytest.raises(ConflictError, match="another run replaced"):
        table.commit(NO_FILES, Watermark("land", 10), replaced=replaced)


def test_skipping_files_loses_no_row(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), SILVER)
    noon = datetime(1969, 12, 31, 12, tzinfo=UTC)
    odd = [
        ("", noon, 0),
        ("a" * 5000, noon + timedelta(microseconds=1), -5),
        ("über", noon + timedelta(microseconds=999_999), -(2**63)),
        ("\U0001f600", noon, 2**63 - 1),
        ("z", None, 7),
        (None, noon, None),
    ]
    for value, (message_id, moment, seq) in enumerate(odd, start=1):
        row = spark.createDataFrame(
            [(message_id, moment, seq)], "message_id string, published_at timestamp, seq bigint"
        )
        given = set(row.columns)
        for field in from_arrow_schema(SILVER.schema).fields:
            if field.name not in given:
                row = row.withColumn(field.name, F.lit(None).cast(field.dataType))
        table.commit(table.write(row), Watermark("land", value))
    columns = dict(zip(("message_id", "published_at", "seq"), zip(*odd, strict=True), strict=True))
    there = Counter(
        (name, str(value)) for name, each in columns.items() for value in each if value is not None
    )

    def asked(name: str, wanted: object) -> DataFrame:
        found = table.read(spark, [(name, ">=", wanted), (name, "<=", wanted)])
        return found.where(F.col(name) == F.lit(wanted)).select(F.lit(name), F.lit(str(wanted)))

    for _ in range(2):
        each = (asked(name, value) for name, given in columns.items() for value in {*given} - {None})
        assert Counter(tuple(row) for row in reduce(DataFrame.union, each).collect()) == there
        table.compact(files_max=1)


def test_files_are_bounded_and_few_are_open(tmp_path: Path) -> None:
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(40)]
    batch = pa.Table.from_pylist(
        [{"stream": "S", "date": day, "data": secrets.token_bytes(2000)} for day in days for _ in range(10)],
        schema=pa.schema([BRONZE.schema.field(name) for name in ("stream", "date", "data")]),
    )
    for name in BRONZE.schema.names:
        if name not in batch.column_names:
            batch = batch.append_column(
                BRONZE.schema.field(name), pa.nulls(len(batch), BRONZE.schema.field(name).type)
            )
    batches = batch.select(BRONZE.schema.names).to_batches() * 3
    rows = [(BRONZE, batch) for batch in batches]
    written = pa.Table.from_batches(write_files(str(tmp_path), rows, file_bytes=1)).to_pylist()

    assert sum(file["rows"] for file in written) == 1200
    assert len(written) >= 40
    assert {(tmp_path / "bronze" / file["path"]).stat().st_size for file in written} == {
        f["size"] for f in written
    }
    in_use = (open_below(tmp_path / "few") for _ in write_files(str(tmp_path / "few"), rows))
    assert max(in_use) == 16


def test_a_merge_sorts_few_files_at_once_and_leaves_large_ones() -> None:
    files = [
        {"path": f"{day}{number}", "size_bytes": size * 2**20, "partition.date": day}
        for day, sizes in {"a": [30] * 8 + [64], "b": [1] * 7}.items()
        for number, size in enumerate(sizes)
    ]
    assert [*groups_to_merge(files, 8).values()] == []
    assert [*groups_to_merge(files, 7).values()] == [["a0", "a1", "a2"], ["a3", "a4"], ["a5", "a6"], ["a7"]]


def test_vacuum_removes_what_killed_runs_left_and_nothing_that_may_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = LakeTable(str(tmp_path), BRONZE)
    for value in range(3):
        table.commit(table.write(messages(spark, 1, 10)), Watermark("land", value + 1))
    before = table.read(spark)
    orphan, fresh = (table.write(messages(spark, 1, 10)).actions[0].path for _ in range(2))
    old = (datetime.now(UTC) - timedelta(hours=30)).timestamp()
    os.utime(Path(table.uri) / orphan, (old, old))
    table.compact(files_max=1)

    assert [name.rpartition("/")[2] for name in table.vacuum(24)] == [orphan.rpartition("/")[2]]

    assert (Path(table.uri) / fresh).exists()
    assert before.count() == table.read(spark).count() == 30
    assert table.watermarks()("land") == 3


def test_a_lake_is_where_it_was_said_to_be(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = LakeTable("relative", BRONZE)
    table.commit(table.write(messages(spark, 1, 10)), Watermark("land", 1))

    monkeypatch.chdir("/")
    assert table.read(spark).count() == 10
    assert LakeTable((tmp_path / "relative").as_uri(), BRONZE).read(spark).count() == 10


def test_a_folder_whose_name_would_be_misread_is_refused() -> None:
    with pytest.raises(PipelineError, match="cannot have a percent sign and two digits"):
        LakeTable("/tmp/a%41b", BRONZE)


def test_a_folder_that_cannot_be_written_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = LakeTable(str(tmp_path / "file"), BRONZE)
    with pytest.raises(PipelineError, match=r"file/bronze cannot be read or written: .*Not a directory"):
        table.write(messages(spark, 1, 10))


@pytest.fixture
def s3(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server, whose address and credentials this process and the tasks have in their environment."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    given = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1", "ENDPOINT_URL": url}
    for name, value in {**given, "ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setitem(spark.sparkContext.environment, f"AWS_{name}", value)
    try:
        asyncio.run(answered(f"{url}/moto-api/", within=60))
        boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/events"
    finally:
        server.kill()
        server.wait()


def test_a_table_in_an_object_store_is_written_and_read(spark: SparkSession, s3: str) -> None:
    table = LakeTable(s3, BRONZE)
    rows = messages(spark, 1, 100_000)
    assert table.commit(table.write(rows), Watermark("land", 100_000, after=0))
    assert not table.commit(NO_FILES, Watermark("land", 100_000, after=0))
    with pytest.raises(ConflictError):
        table.commit(NO_FILES, Watermark("land", 100_001, after=1))

    assert table.watermarks()("land") == 100_000
    assert table.read(spark).exceptAll(rows).isEmpty()
    some = table.read(spark, [("date", "=", "1970-01-02")], columns=["date", "seq"])
    assert some.columns == ["date", "seq"]
    assert some.count() == 100_000 - 86_400 + 1
    assert some.agg(F.min("seq")).first() == (86_400,)
    assert KEY not in some._jdf.queryExecution().toString()


def test_an_unreachable_object_store_is_reported(s3: str) -> None:
    with pytest.raises(PipelineError, match=r"s3://no-such-bucket/bronze cannot be read or written: "):
        LakeTable("s3://no-such-bucket", BRONZE).watermarks()("land")


def open_below(folder: Path) -> int:
    """Count this process's open files below a folder."""
    files = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    return sum(file.startswith(str(folder)) for file in files)


def opened(table: LakeTable) -> DeltaTable:
    found = table.open()
    assert found is not None
    return found


def rows_of(table: LakeTable) -> int:
    """Count by the log's own statistics."""
    return int(sum(pa.table(opened(table).get_add_actions())["num_records"].to_pylist()))
