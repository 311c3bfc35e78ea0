"""Read a range of a stream's sequences in one task: each message once, in order, or an error."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import StreamInfo, stream_info
from sea_mq_worker.pipeline.jetstream.columns import Frame, to_batch
from sea_mq_worker.pipeline.jetstream.direct_get import DirectGet
from sea_mq_worker.pipeline.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.jetstream.state import IdleTimeout, Leader, connected

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 * 1024 * 1024
_BATCHES_SINCE = (2, 11)


@dataclass
class SequenceRange(InputPartition):
    """Sequences ``first`` to ``last``, both included, of the stream with this creation time.

    ``floats``: the range begins at the stream's first message, whichever that is when the task reads. The
    stream's age limit may remove messages until then; nothing before them was read, so no gap arises.
    """

    created: str
    first: int
    last: int
    floats: bool = False


def split_range(created: str, first: int, last: int, *, size: int, floats: bool) -> list[InputPartition]:
    """Split a range into parts of ``size``, the first of which may float; an empty range is one part."""
    starts = range(first, last + 1, size) or (first,)
    return [
        SequenceRange(created, start, min(start + size - 1, last), floats=floats and start == first)
        for start in starts
    ]


def read_range(options: JetStreamOptions, sequences: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range.

    If the servers are unavailable, wait up to a minute, and continue after the last row.

    Raises:
        UnavailableError: the servers stayed unavailable.
        ContractError: the server refuses the connection or the request, or the stream is missing.
        DataLossError: messages were deleted before they were read.
    """
    if sequences.first > sequences.last:
        return
    with asyncio.Runner() as runner:
        batches = _resumed(options, sequences)

        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        try:
            while batch := runner.run(following()):
                yield batch
        finally:
            runner.run(batches.aclose())


async def _resumed(
    options: JetStreamOptions, sequences: SequenceRange
) -> AsyncGenerator[pa.RecordBatch, None]:
    settings = options.settings()
    at = sequences.first
    idle = IdleTimeout()
    while True:
        try:
            async with connected(settings) as connection:
                read = _Read(connection, options, sequences)
                await read.begin()
                while at <= sequences.last:
                    batch, at = await read.step(at)
                    if batch.num_rows:
                        yield batch
                    idle.renew()
                await read.checked_state()
                return
        except UnavailableError as error:
            idle.pause(error)


@dataclass
class _Read:
    """A range read over one connection."""

    connection: NatsConnection
    options: JetStreamOptions
    sequences: SequenceRange
    direct: DirectGet | None = None

    def __post_init__(self) -> None:
        self.leader = Leader(self.connection, self.options.stream, self.options.subject or ">")

    async def begin(self) -> None:
        """Read batches from any replica if the stream and the server allow it, otherwise from the leader."""
        state = await self.checked_state()
        if state.allow_direct and self.connection.server_version >= _BATCHES_SINCE:
            self.direct = await DirectGet.open(self.connection, self.options.stream)

    async def step(self, at: int) -> tuple[pa.RecordBatch, int]:
        """Return some rows from ``at`` on, and the sequence at which to continue."""
        batch, end = await self._from_replica(self.direct, at) if self.direct else (None, at)
        if batch is None or end == at:
            frames, end = await self.leader.read(at, self.sequences.last)
            batch = self._batch(frames)
        floating = self.sequences.first if self.sequences.floats else None
        if gaps := [first for first, _ in _gaps(_seqs(batch), at, end) if first != floating]:
            await self.checked_state(first=gaps[0])
        return batch, end

    async def checked_state(self, *, first: int | None = None) -> StreamInfo:
        """Return the stream's state, unless it was replaced, or sequences from ``first`` on were removed."""
        state = await stream_info(self.connection, self.options.stream)
        wanted = self.sequences
        self.options.check(state, created=wanted.created, first=first, last=wanted.last)
        return state

    async def _from_replica(self, direct: DirectGet, at: int) -> tuple[pa.RecordBatch, int]:
        """Return rows from ``at`` up to the first gap that the leader denies, and the sequence after them."""
        last = self.sequences.last
        subject = {"next_by_subj": self.options.subject} if self.options.subject else {}
        request = {"seq": at, "batch": min(_BATCH_ROWS, last - at + 1), "max_bytes": _BATCH_BYTES, **subject}
        batch = self._batch(await direct.fetch(request))
        seqs = _seqs(batch)
        end = seqs[-1] + 1 if seqs and seqs[-1] <= last else last + 1
        denied = await self.leader.first_denied(_gaps(seqs[: bisect_left(seqs, end)], at, end))
        end = denied or end
        return batch.slice(0, bisect_left(seqs, end)), end

    def _batch(self, frames: Sequence[Frame]) -> pa.RecordBatch:
        return to_batch(self.options.stream, self.sequences.created, frames)


def _seqs(batch: pa.RecordBatch) -> list[int]:
    seqs: list[int] = batch.column("seq").to_pylist()
    return seqs


def _gaps(seqs: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
    """Return first and last sequence of each run that is missing from ``start`` on, before ``end``."""
    if len(seqs) == end - start:
        return []
    edges = zip([start - 1, *seqs], [*seqs, end], strict=True)
    return [(before + 1, after - 1) for before, after in edges if after - before > 1]
