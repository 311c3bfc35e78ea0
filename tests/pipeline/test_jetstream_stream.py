"""``spark.readStream.format("jetstream")``: micro-batches that neither double nor skip, or an error."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.jetstream_support import PASSWORD, Stream, settings_file


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
        source = self._spark.readStream.format("jetstream").options(**{**self._options, **options}).load()
        writer = source.writeStream.option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(self._take).trigger(availableNow=True).start()
        await asyncio.to_thread(query.awaitTermination)
        self.progress = query.recentProgress
        return [seq for batch in self.batches for seq in batch]

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
    assert await query.run(startSeq="latest") == []
    for file in (query.checkpoint / "commits").iterdir():
        file.unlink()

    await stream.store(25)
    assert await query.run(startSeq="latest", maxMsgsPerTrigger=10) == list(range(4, 29))
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
