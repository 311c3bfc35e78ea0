"""``spark.readStream.format("jetstream")``: micro-batches that neither double nor skip, or an error."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.jetstream_support import Stream, settings_file
from tests.support.jetstream import connected


@pytest_asyncio.fixture
async def stream(nats_url: str, names: str) -> AsyncIterator[Stream]:
    async with connected(nats_url) as connection:
        own = Stream(connection, names)
        await own.create()
        yield own


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


def position_of(offset: str | dict[str, Any]) -> int:
    return int((json.loads(offset) if isinstance(offset, str) else offset)["next"])


async def test_each_message_comes_once_over_restarts(stream: Stream, query: Query) -> None:
    await stream.store(25)
    assert await query.run(maxMsgsPerTrigger=10) == list(range(1, 26))
    assert [len(batch) for batch in query.batches] == [10, 10, 5]
    source = query.progress[-1]["sources"][0]
    assert (position_of(source["endOffset"]), position_of(source["latestOffset"])) == (26, 26)

    await stream.store(5)
    query.fails = True
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        await query.run()
    query.fails = False
    await stream.store(2)
    assert await query.run() == list(range(26, 33))
    assert await query.run() == []


async def test_a_crash_in_the_first_batch_does_not_move_the_beginning(stream: Stream, query: Query) -> None:
    await stream.store(3)
    assert await query.run(startingOffset="latest") == []
    for file in (query.checkpoint / "commits").iterdir():
        file.unlink()

    await stream.store(2)

    assert await query.run(startingOffset="latest") == [4, 5]


async def test_a_query_may_begin_at_a_sequence(stream: Stream, query: Query) -> None:
    await stream.store(5)
    assert await query.run(startingOffset=4) == [4, 5]


async def test_messages_that_went_before_they_were_read_end_the_query(stream: Stream, query: Query) -> None:
    await stream.store(3)
    await query.run()
    await stream.store(5)
    await stream.purge(before=7)

    with pytest.raises(StreamingQueryException, match="DataLossError: .*sequences 4 to 6 were removed"):
        await query.run()
    assert await query.run(failOnDataLoss=False) == [7, 8]


async def test_a_stream_that_was_made_again_ends_the_query(stream: Stream, query: Query) -> None:
    await stream.store(3)
    await query.run()
    await stream.drop()
    await stream.create()
    await stream.store(5)

    with pytest.raises(StreamingQueryException, match="DataLossError: .*deleted and made again"):
        await query.run()
    assert await query.run(failOnDataLoss=False, maxMsgsPerTrigger=3) == [1, 2, 3, 4, 5]
    await stream.store(1)
    assert await query.run() == [6]


async def test_a_checkpoint_of_another_stream_is_refused(stream: Stream, query: Query) -> None:
    await query.run()
    other = Stream(stream.connection, f"{stream.name}x")
    await other.create()
    with pytest.raises(StreamingQueryException, match="give each query a checkpoint of its own"):
        await query.run(stream=other.name)
