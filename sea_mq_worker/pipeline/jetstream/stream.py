"""``spark.readStream.format("jetstream")``: a stream's messages in micro-batches.

An offset is the stream's name, its creation time and the next sequence; 0 is the stream's first message,
whichever that is. The query ends with a DataLossError if messages were deleted before they were read, or if
the stream was restored to an older state; with the option failOnDataLoss=false it continues with the messages
that remain. A stream that was created again always ends the query.

The first micro-batch of a query is empty, so a query with Trigger.Once, which Spark has deprecated, reads
nothing the first time; Trigger.AvailableNow reads everything.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.jetstream.reader import SequenceRange, read_range, split_range
from sea_mq_worker.pipeline.jetstream.state import IdleTimeout, stream_state

_PACE_SECONDS = 0.5
"""Minimum time between two queries, each over its own connection: Spark asks a hundred times a second."""


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; ``read`` runs on the executors."""

    def __init__(self, options: JetStreamOptions) -> None:
        self._options = options
        self._queried_at = float("-inf")
        self._target: int | None = None
        self._begins = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        self._begins = True
        state = self._queried()
        offset = {
            "stream": state.name,
            "created": self._options.created or state.created,
            "next": self._options.first_seq(state) or 0,
        }
        self._first_unread(offset, state)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        rows = self._options.max_msgs_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends.

        Of a query's first micro-batch Spark stores only the end. After a crash it would compute the begin
        again, with another result. So the first one is empty: its end is the query's begin.

        Raises:
            DataLossError: the stream does not continue from the query's offset.
        """
        if self._begins:
            self._begins = False
            return start
        state = self._queried()
        first = self._first_unread(start, state)
        end = state.last_seq + 1 if self._target is None else min(state.last_seq + 1, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        return {**start, "next": end if end > first else min(start["next"], first)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the stream's present end, where a query with this trigger stops."""
        self._target = self._queried().last_seq + 1

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a micro-batch among tasks."""
        self._begins = False
        first = start["next"] or self._queried().first_seq
        if first >= end["next"]:
            return []
        size = self._options.rows_per_partition
        return split_range(end["created"], first, end["next"] - 1, size=size, floats=not start["next"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        assert isinstance(partition, SequenceRange)  # noqa: S101 - of partitions()
        return read_range(self._options, partition)

    def _queried(self) -> StreamInfo:
        """Query the leader once; wait up to a minute for unavailable servers."""
        time.sleep(max(0.0, self._queried_at + _PACE_SECONDS - time.monotonic()))
        idle = IdleTimeout()
        while True:
            try:
                state = stream_state(self._options.settings(), self._options.stream)
            except UnavailableError as error:
                idle.pause(error)
            else:
                self._queried_at = time.monotonic()
                return state

    def _first_unread(self, offset: Mapping[str, Any], state: StreamInfo) -> int:
        """Return the first sequence after an offset that the stream has or will have; none may be lost."""
        if offset["stream"] != state.name:
            raise PipelineError(
                f"the checkpoint is of stream {offset['stream']}, and the query reads {state.name}: "
                "give each query a checkpoint of its own"
            )
        following = int(offset["next"])
        self._options.check(state, created=offset["created"], first=following or None, last=following - 1)
        return max(state.first_seq, min(following, state.last_seq + 1))
