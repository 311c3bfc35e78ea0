"""Begin and end of micro-batches, and the changes that end a query; without Spark."""

import asyncio
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jetstream.source import JetStreamOptions, JetStreamStreamReader
from tests.pipeline.jetstream_support import Stream, rows_of

ALL = ReadAllAvailable()


class Driver:
    """Calls a reader as Spark does on the driver; ``at`` is where the query stands."""

    def __init__(self, stream: str, at: dict[str, Any] | None = None, **options: Any) -> None:
        given = {"stream": stream} | {name: str(value) for name, value in options.items()}
        self.reader = JetStreamStreamReader(JetStreamOptions.of(given))
        self.at = at or {}

    async def begin(self) -> None:
        """Start a new query, as far as its first micro-batch, which is empty."""
        self.at = await asyncio.to_thread(self.reader.initialOffset)
        assert await self.batch() == []

    async def batch(self, limit: ReadLimit = ALL) -> list[int]:
        """Run a micro-batch; return the sequences that it read."""
        return await self._run(await asyncio.to_thread(self.reader.latestOffset, self.at, limit))

    async def old_batch(self) -> list[int]:
        """Run a micro-batch as Spark before 4.2, which asks for the begin of a new query last."""
        end = await asyncio.to_thread(self.reader.latestOffset)
        self.at = self.at or await asyncio.to_thread(self.reader.initialOffset)
        return await self._run(end)

    async def _run(self, end: dict[str, Any]) -> list[int]:
        parts = await asyncio.to_thread(self.reader.partitions, self.at, end)
        rows = await rows_of(self.reader, parts)
        self.at = end
        return [row["seq"] for row in rows]


@pytest.fixture
def drive(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sea_mq_worker.pipeline.jetstream.source._PACE_SECONDS", 0.0)
    return partial(Driver, stream.name)


@pytest.mark.parametrize(("start", "read"), [(None, [3, 4, 5]), ("latest", [5]), ("4", [4, 5])])
async def test_a_query_begins_at_its_starting_offset(
    stream: Stream, drive: Any, start: str | None, read: list[int]
) -> None:
    await stream.store(4)
    await stream.purge(seq=3)
    driver = drive(**({"startSeq": start} if start else {}))
    await driver.begin()
    await stream.store(1)
    assert await driver.batch() == read
    assert await driver.batch() == []


async def test_a_crash_in_the_first_micro_batch_moves_no_begin(stream: Stream, drive: Any) -> None:
    await stream.store(4)
    crashed = drive(startSeq="latest")
    await crashed.begin()
    await stream.store(2)
    restarted = drive(startSeq="latest")
    newer = await asyncio.to_thread(restarted.reader.initialOffset)
    assert await asyncio.to_thread(restarted.reader.partitions, newer, crashed.at) == []
    restarted.at = crashed.at
    assert await restarted.batch() == [5, 6]


async def test_a_query_that_takes_what_is_there_ends_there(stream: Stream, drive: Any) -> None:
    await stream.store(4)
    driver = drive()
    await asyncio.to_thread(driver.reader.prepareForTriggerAvailableNow)
    await driver.begin()
    await stream.store(4)
    assert await driver.batch(ReadMaxRows(3)) == [1, 2, 3]
    assert await driver.batch(ReadMaxRows(3)) == [4]
    before = driver.at
    assert await driver.batch() == []
    assert driver.at == before
    ending = drive(before, endSeq=6)
    assert await ending.batch() == [5, 6]
    assert await ending.batch() == []
    assert await drive(ending.at, endSeq=2).batch() == []


async def test_a_spark_that_tells_no_begin_reads_the_same_and_finds_the_same_losses(
    stream: Stream, drive: Any
) -> None:
    await stream.store(4)
    driver = drive(endSeq=3)
    assert await driver.old_batch() == [1, 2, 3]
    assert await driver.old_batch() == []
    following = drive(driver.at)
    assert await following.old_batch() == [4]

    with pytest.raises(PipelineError, match="has read up to 4, and endSeq is smaller"):
        await drive(following.at, endSeq=3).old_batch()
    with pytest.raises(PipelineError, match=r"startSeq=latest in a query needs Spark 4\.2"):
        await drive(startSeq="latest").old_batch()
    with pytest.raises(PipelineError, match="give each query a checkpoint of its own"):
        await drive(following.at | {"stream": "OTHER"}).old_batch()
    with pytest.raises(DataLossError, match="deleted and created again"):
        await drive(following.at | {"created": "2026-01-01T00:00:00Z"}).old_batch()
    with pytest.raises(DataLossError, match="ends at sequence 4, before 10: it was restored"):
        await drive(following.at | {"next": 11}).old_batch()
    await stream.store(3)
    await stream.purge(seq=7)
    with pytest.raises(DataLossError, match="sequences 5 to 6 were removed"):
        await drive(following.at).old_batch()


async def test_messages_that_went_before_they_were_read_are_an_error(stream: Stream, drive: Any) -> None:
    await stream.store(3)
    driver = drive()
    await driver.begin()
    await driver.batch()
    await stream.store(5)
    await stream.purge(seq=7)

    with pytest.raises(DataLossError, match="sequences 4 to 6 were removed"):
        await driver.batch()
    assert await drive(driver.at, failOnDataLoss=False).batch(ReadMaxRows(1)) == [7]


async def test_until_something_is_read_the_head_may_go(stream: Stream, drive: Any) -> None:
    await stream.store(5)
    driver = drive()
    await driver.begin()
    await stream.purge(seq=3)
    assert await drive(driver.at).batch(ReadMaxRows(2)) == [3, 4]

    named = drive(startSeq=3)
    await named.begin()
    await stream.purge(seq=5)
    with pytest.raises(DataLossError, match="sequences 3 to 4 were removed"):
        await named.batch()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"stream": "OTHER"}, PipelineError, "give each query a checkpoint of its own"),
        ({"created": "2026-01-01T00:00:00Z"}, DataLossError, "deleted and created again"),
    ],
)
async def test_a_checkpoint_of_another_stream_is_refused(
    *, stream: Stream, drive: Any, change: dict[str, Any], error: type[Exception], problem: str, strict: bool
) -> None:
    driver = drive(failOnDataLoss=strict)
    await driver.begin()
    driver.at |= change
    with pytest.raises(error, match=problem):
        await driver.batch()


async def test_a_stream_restored_to_an_older_state_is_an_error(stream: Stream, drive: Any) -> None:
    await stream.store(4)
    driver = drive()
    await driver.begin()
    ahead = driver.at | {"next": 11}

    with pytest.raises(DataLossError, match="ends at sequence 4, before 10: it was restored"):
        await drive(ahead).batch()
    lenient = drive(ahead, failOnDataLoss=False)
    assert await lenient.batch() == []
    await stream.store(1)
    assert await lenient.batch() == [5]
