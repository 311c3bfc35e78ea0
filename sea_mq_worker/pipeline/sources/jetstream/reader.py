"""Read a range of a stream's sequences in one task: each message once, in order, or an error."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import StreamInfo, stream_info
from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.pipeline.sources.jetstream.columns import Frame, to_batch
from sea_mq_worker.pipeline.sources.jetstream.direct_get import GIVES_FRAMES, DirectGet
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.state import IdleTimeout, Leader, connected

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
            await idle.pause(error)


class _Read:
    """A range read over one connection."""

    def __init__(
        self, connection: NatsConnection, options: JetStreamOptions, sequences: SequenceRange
    ) -> None:
        self._connection = connection
        self._options = options
        self._sequences = sequences
        self._direct: DirectGet | None = None
        self._leader = Leader(connection, options.stream, subject=options.subject or ">")

    async def begin(self) -> None:
        """Read batches from any replica if the stream and the server allow it, otherwise from the leader."""
        state = await self.checked_state()
        if GIVES_FRAMES and state.allow_direct and self._connection.server_version >= _BATCHES_SINCE:
            self._direct = await DirectGet.open(self._connection, self._options.stream)

    async def step(self, at: int) -> tuple[pa.RecordBatch, int]:
        """Return some rows from ``at`` on, and the sequence at which to continue."""
        if self._direct:
            found = self._found(at, await self._direct.fetch(self._request(at)))
            denied = await self._leader.first_denied(found.gaps)
            if denied != at:
                return await self._checked(found.before(denied))
        frames, following = await self._leader.read(at, self._sequences.last)
        return await self._checked(self._found(at, frames, following))

    async def checked_state(self, *, first: int | None = None) -> StreamInfo:
        """Return the stream's state.

        Raises:
            DataLossError: the stream was replaced, or sequences from ``first`` on were removed.
        """
        state = await stream_info(self._connection, self._options.stream)
        wanted = self._sequences
        self._options.check(state, created=wanted.created, first=first, last=wanted.last)
        return state

    def _request(self, at: int) -> dict[str, Any]:
        rows = min(_BATCH_ROWS, self._sequences.last - at + 1)
        subject = {"next_by_subj": self._options.subject} if self._options.subject else {}
        return {"seq": at, "batch": rows, "max_bytes": _BATCH_BYTES, **subject}

    def _found(self, at: int, frames: Sequence[Frame], following: int | None = None) -> "_Found":
        """Drop messages after the range, and work out how far the batch reaches."""
        last = self._sequences.last
        batch = to_batch(self._options.stream, self._sequences.created, frames)
        seqs = batch.column("seq").to_pylist()
        kept = bisect_right(seqs, last)
        ends_here = kept == len(seqs) > 0
        end = following or (seqs[-1] + 1 if ends_here else last + 1)
        return _Found(at, batch.slice(0, kept), seqs[:kept], min(end, last + 1))

    async def _checked(self, found: "_Found") -> tuple[pa.RecordBatch, int]:
        floating = self._sequences.first if self._sequences.floats else None
        if gaps := [first for first, _ in found.gaps if first != floating]:
            await self.checked_state(first=gaps[0])
        return found.batch, found.end


@dataclass(frozen=True, slots=True)
class _Found:
    """Messages found from ``start`` on, before ``end``."""

    start: int
    batch: pa.RecordBatch
    seqs: Sequence[int]
    end: int

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """First and last sequence of each run of missing messages."""
        if len(self.seqs) == self.end - self.start:
            return []
        edges = zip([self.start - 1, *self.seqs], [*self.seqs, self.end], strict=True)
        return [(before + 1, after - 1) for before, after in edges if after - before > 1]

    def before(self, seq: int | None) -> "_Found":
        """Return only the messages before a sequence; None: all."""
        if seq is None:
            return self
        kept = bisect_left(self.seqs, seq)
        return _Found(self.start, self.batch.slice(0, kept), self.seqs[:kept], seq)
