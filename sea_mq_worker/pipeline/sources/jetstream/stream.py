"""``spark.readStream.format("jetstream")``: a stream's messages in micro-batches.

An offset is the stream's name, its creation time and the next sequence. Messages that went before they were
read, a stream that was made again, and one that was restored to an older state end the query with a
DataLossError, unless the option failOnDataLoss=false says to go on with what is there.

The first micro-batch of a query is empty, so a query with Trigger.Once, which Spark has deprecated, reads
nothing the first time; Trigger.AvailableNow reads all that is there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.sources.jetstream import loss_messages
from sea_mq_worker.pipeline.sources.jetstream.offset_watcher import OffsetWatcher
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.reader import SequenceRange, read_range, split_range


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query stands: everything before ``next`` is read.

    ``floats``: nothing is read yet, and the query begins wherever the stream does.
    """

    stream: str
    created: str
    next: int
    floats: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any], options: JetStreamOptions) -> Self:
        """Read an offset of Spark's.

        Raises:
            PipelineError: it is of another stream.
        """
        if offset["stream"] != options.stream:
            raise PipelineError(
                f"the checkpoint is of stream {offset['stream']}, and the query reads {options.stream}: "
                "give each query a checkpoint of its own"
            )
        return cls(offset["stream"], offset["created"], int(offset["next"]), floats="floats" in offset)

    def offset(self) -> dict[str, Any]:
        """Return what Spark keeps."""
        told = {"stream": self.stream, "created": self.created, "next": self.next}
        return told | {"floats": True} if self.floats else told


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; ``read`` runs on the executors."""

    def __init__(self, options: JetStreamOptions) -> None:
        self._options = options
        self._watch: OffsetWatcher | None = None
        self._seen: StreamInfo | None = None
        self._target: Position | None = None
        self._begins = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        self._begins = True
        state = self._state()
        begins = self._options.starting_offset
        ends = {"earliest": state.first_seq, "latest": state.last_seq + 1}
        at = begins if isinstance(begins, int) else ends[begins]
        created = self._options.created or state.created
        wanted = Position(state.name, created, at, floats=begins == "earliest")
        return self._tenable(wanted, state).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a micro-batch takes at most."""
        rows = self._options.rows_per_batch
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends.

        Of a query's first one Spark keeps the end alone; where the query began would be found anew, and
        elsewhere, after a crash. So the first one is empty: its end is the beginning.

        Raises:
            DataLossError: the stream does not go on from where the query stands.
        """
        if self._begins:
            self._begins = False
            return start
        state = self._state()
        at = self._tenable(Position.of(start, self._options), state)
        target = self._target or _end_of(state)
        if at.created != target.created or at.next > target.next:
            return start
        end = min(state.last_seq + 1, target.next)
        if isinstance(limit, ReadMaxRows):
            end = min(end, at.next + limit.max_rows)
        return Position(at.stream, at.created, end).offset() if end > at.next else at.offset()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the stream ended just now: Spark's progress shows how far behind the query is."""
        return _end_of(self._seen or self._state()).offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Keep where the stream ends now: a query that takes what is there ends there."""
        self._target = _end_of(self._state())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Share a micro-batch out."""
        self._begins = False
        first, after = Position.of(start, self._options), Position.of(end, self._options)
        at = first.next
        if first.created != after.created or first.floats:
            at = self._first_of(first, after)
        if at >= after.next:
            return []
        size = self._options.rows_per_partition
        return split_range(after.created, at, after.next - 1, size=size, floats=first.floats)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one stretch."""
        assert isinstance(partition, SequenceRange)  # noqa: S101 - of partitions()
        return read_range(self._options, partition)

    def stop(self) -> None:
        """Close the connection."""
        if self._watch:
            self._watch.close()
            self._watch = None

    def _state(self) -> StreamInfo:
        if self._watch is None:
            self._watch = OffsetWatcher(self._options.settings(), self._options.stream)
        self._seen = self._watch.state()
        return self._seen

    def _tenable(self, at: Position, state: StreamInfo) -> Position:
        """Return a position that the stream has: the same one, unless loss is allowed."""
        fails = self._options.fail_on_data_loss
        if at.created != state.created:
            if self._options.one_stream:
                raise loss_messages.recreated(state, at.created)
            return Position(at.stream, state.created, state.first_seq)
        if at.next > state.last_seq + 1:
            if fails:
                raise loss_messages.rolled_back(state, at.next - 1)
            return Position(at.stream, at.created, state.last_seq + 1)
        if at.next < state.first_seq:
            if fails and not at.floats:
                raise loss_messages.removed(state, at.next)
            return replace(at, next=state.first_seq)
        return at

    def _first_of(self, before: Position, after: Position) -> int:
        """Return where a micro-batch begins that goes from one stream to its successor, or floats."""
        state = self._state()
        if state.created == after.created and before.floats:
            return max(before.next, state.first_seq)
        if self._options.one_stream:
            raise loss_messages.recreated(state, before.created)
        return state.first_seq if state.created == after.created else after.next


def _end_of(state: StreamInfo) -> Position:
    return Position(state.name, state.created, state.last_seq + 1)
