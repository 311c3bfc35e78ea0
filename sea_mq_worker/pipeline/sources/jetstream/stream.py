"""``spark.readStream.format("jetstream")``: a stream's messages in micro-batches.

An offset is the stream's name, its creation time and the next sequence. The query ends with a DataLossError
if messages were deleted before they were read, or if the stream was created again or restored to an older
state. With the option failOnDataLoss=false it continues with the messages that remain.

The first micro-batch of a query is empty, so a query with Trigger.Once, which Spark has deprecated, reads
nothing the first time; Trigger.AvailableNow reads everything.
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
    """A query's position: everything before ``next`` is read.

    ``floats``: nothing is read yet, and the query begins at the stream's first message, whichever that is.
    """

    stream: str
    created: str
    next: int
    floats: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any], options: JetStreamOptions) -> Self:
        """Parse an offset from Spark.

        Raises:
            PipelineError: the offset is of another stream.
        """
        if offset["stream"] != options.stream:
            raise PipelineError(
                f"the checkpoint is of stream {offset['stream']}, and the query reads {options.stream}: "
                "give each query a checkpoint of its own"
            )
        return cls(offset["stream"], offset["created"], int(offset["next"]), floats="floats" in offset)

    def offset(self) -> dict[str, Any]:
        """Return the offset that Spark stores."""
        offset = {"stream": self.stream, "created": self.created, "next": self.next}
        return offset | {"floats": True} if self.floats else offset


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
        return self._valid(wanted, state).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        rows = self._options.rows_per_batch
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends.

        Of a query's first micro-batch Spark stores only the end. After a crash it would compute the begin
        again, with another result. So the first one is empty: its end is the query's begin.

        Raises:
            DataLossError: the stream does not continue from the query's position.
        """
        if self._begins:
            self._begins = False
            return start
        state = self._state()
        at = self._valid(Position.of(start, self._options), state)
        target = self._target or _end_of(state)
        if at.created != target.created or at.next > target.next:
            return start
        end = min(state.last_seq + 1, target.next)
        if isinstance(limit, ReadMaxRows):
            end = min(end, at.next + limit.max_rows)
        return Position(at.stream, at.created, end).offset() if end > at.next else at.offset()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the stream's latest end, from which Spark computes how far behind the query is."""
        return _end_of(self._seen or self._state()).offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the stream's present end, where a query with this trigger stops."""
        self._target = _end_of(self._state())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a micro-batch among tasks."""
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
        """Yield the rows of one range."""
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

    def _valid(self, at: Position, state: StreamInfo) -> Position:
        """Return a position that the stream has: the same, or the nearest if loss is allowed."""
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
        """Return the begin of a micro-batch that floats, or crosses from one stream to its successor."""
        state = self._state()
        if state.created == after.created and before.floats:
            return max(before.next, state.first_seq)
        if self._options.one_stream:
            raise loss_messages.recreated(state, before.created)
        return state.first_seq if state.created == after.created else after.next


def _end_of(state: StreamInfo) -> Position:
    return Position(state.name, state.created, state.last_seq + 1)
