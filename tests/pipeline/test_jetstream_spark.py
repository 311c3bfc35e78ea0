"""``spark.read`` and ``spark.readStream`` of a stream, in Spark itself."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyspark
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from tests.pipeline.jetstream_support import PASSWORD, Stream, settings_file

Read: TypeAlias = Callable[..., DataFrame]

IS_OLD = tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2)
"""A run is one batch, which may be the one that was not committed, and ``latest`` is refused."""


@pytest.fixture
def read(spark: SparkSession, nats_url: str, names: str, tmp_path: Path) -> Read:
    def load(**options: Any) -> DataFrame:
        given = {"stream": names, "config": settings_file(tmp_path, nats_url), **options}
        return spark.read.format("jetstream").options(**given).load()

    return load


async def test_a_stream_is_a_table_read_by_many_tasks(stream: Stream, read: Read) -> None:
    await stream.store(24, Tag="a")
    await stream.store(1, body=b"\x00\xff", subject="event.x.v2")

    rows = read(rowsPerPartition=10).withColumn("task", F.spark_partition_id()).collect()

    assert [(row.seq, row.task) for row in rows] == [(seq, (seq - 1) // 10) for seq in range(1, 26)]
    assert [tuple(pair) for pair in rows[0].headers] == [("Tag", "a")]
    assert (rows[24].subject, rows[24].headers, rows[24].data) == (
        f"{stream.name}.event.x.v2",
        [],
        b"\x00\xff",
    )
    assert (rows[0].stream, rows[0].created) == (stream.name, (await stream.info())["created"])
    assert rows[0].message_id.startswith(f"{stream.name}/1@")
    assert rows[0].time <= rows[24].time


async def test_300_bodies_of_a_megabyte_are_read(stream: Stream, read: Read) -> None:
    await stream.store(300, body=bytes(1_000_000))
    counted = read(rowsPerPartition=100).agg(F.count("*"), F.sum(F.length("data"))).collect()
    assert [tuple(row) for row in counted] == [(300, 300_000_000)]


async def test_an_error_names_the_remedy_and_nothing_shows_a_secret(
    stream: Stream, read: Read, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await stream.last_seq() == 0
    read().explain("extended")
    with pytest.raises(PySparkException, match="ContractError: stream none does not exist") as wrong:
        read(stream="none").collect()
    shown = capfd.readouterr()
    assert "jetstream" in shown.out
    assert PASSWORD not in shown.out + shown.err + str(wrong.value)


class Query:
    """A query with a checkpoint of its own, run again and again until it has caught up."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.batches: list[list[int]] = []
        self.fails = False
        self._spark = spark
        self._options = options
        self.checkpoint = folder / "checkpoint"

    async def run(self, **options: Any) -> list[int]:
        """Return the sequences that this run has read, in order within each batch."""
        self.batches = []
        for _ in range(2 if IS_OLD else 1):
            await self._run(options)
        return [seq for batch in self.batches for seq in batch]

    async def _run(self, options: dict[str, Any]) -> None:
        source = self._spark.readStream.format("jetstream").options(**{**self._options, **options}).load()
        writer = source.writeStream.option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(self._take).trigger(availableNow=True).start()
        await asyncio.to_thread(query.awaitTermination)
        self.progress = query.recentProgress

    def _take(self, frame: DataFrame, _number: int) -> None:
        rows = frame.select("seq").collect()
        if rows and self.fails:
            raise RuntimeError("the sink fails")
        if rows:
            self.batches.append([row.seq for row in rows])


@pytest.fixture
def query(spark: SparkSession, nats_url: str, names: str, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, stream=names, config=settings_file(tmp_path, nats_url))


@pytest.mark.slow
async def test_each_message_comes_once_over_crashes_and_a_loss_ends_the_query(
    stream: Stream, query: Query
) -> None:
    await stream.store(3)
    begin = "latest"
    if IS_OLD:
        with pytest.raises(StreamingQueryException, match="startSeq=latest in a query needs"):
            await query.run(startSeq=begin)
        begin = "4"
    assert await query.run(startSeq=begin) == []
    for file in (query.checkpoint / "commits").iterdir():
        file.unlink()

    await stream.store(25)
    assert await query.run(startSeq=begin, maxMsgsPerTrigger=10) == list(range(4, 29))
    if not IS_OLD:
        assert [len(batch) for batch in query.batches] == [10, 10, 5]
        assert json.loads(query.progress[-1]["sources"][0]["endOffset"])["next"] == 29

    await stream.store(5)
    query.fails = True
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        await query.run()
    query.fails = False
    await stream.store(2)
    assert await query.run() == list(range(29, 36))

    await stream.store(3)
    await stream.purge(seq=38)
    with pytest.raises(StreamingQueryException, match=r"DataLossError: .*sequences 36 to 37 were re") as lost:
        await query.run()
    assert PASSWORD not in str(lost.value)
