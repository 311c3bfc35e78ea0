"""The Spark data source ``jetstream``: a stream's messages as rows, in one read or as a streaming query.

The user of NATS needs the permission to publish to ``$JS.API.STREAM.INFO`` and ``$JS.API.STREAM.MSG.GET`` of
the stream, on the driver and on the executors; ``reading`` tells what makes it fast. It changes no stream.

Spark starts processes that only look at this module: what reads is imported where it reads.
"""

# ruff: noqa: PLC0415

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.settings import Settings, config_file, load_settings

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which takes the present end itself
    SupportsTriggerAvailableNow = object  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from sea_mq_worker.nats.info import StreamInfo

_SCHEMA = (
    "stream STRING, created STRING, seq BIGINT, subject STRING, time TIMESTAMP, headers ARRAY<STRUCT<key: "
    "STRING, value: STRING>>, data BINARY, message_id STRING, event_type STRING, event_version INT, source "
    "STRING, aggregate STRING, occurred_at TIMESTAMP, correlation_id STRING, causation_id STRING, "
    "partition_key STRING, context STRING"
)
_OR_CONTINUE = "or set the option failOnDataLoss=false to continue with the messages that remain"
_PACE_SECONDS = 0.5
"""Minimum time between two queries, each over its own connection: Spark asks a hundred times a second."""


class JetStreamOptions(BaseModel):
    """The messages to read, and how to read them; Spark's names of the options are in camel case.

    Attributes:
        stream: name of the stream.
        created: required creation time of the stream, in the server's format; None: the present stream's.
        subject: subject of the messages, with NATS wildcards; empty: all.
        start_seq: first sequence to read; None: the stream's first message; ``latest``: only later messages.
        end_seq: last sequence to read; None: in one read the stream's last at planning, in a query no end.
        rows_per_partition: number of sequences that one task reads.
        fail_on_data_loss: raise an error if messages were deleted before they could be read.
        max_msgs_per_trigger: maximum number of sequences in a micro-batch; None: no limit. Spark before 4.2
            ignores it: there ``end_seq`` bounds what a run reads.
        config: path of the settings file on every node; None: settings from each node's environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field(pattern=r"^[^ .*>]+$")
    created: str | None = None
    subject: str = Field("", pattern=r"^\S*$")
    start_seq: PositiveInt | Literal["latest"] | None = None
    end_seq: NonNegativeInt | None = None
    rows_per_partition: PositiveInt = 50_000
    fail_on_data_loss: bool = True
    max_msgs_per_trigger: PositiveInt | None = None
    config: str | None = Field(default_factory=config_file)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Parse Spark's options, whose names ignore case.

        Raises:
            PipelineError: an option is unknown, wrong or missing.
        """
        fields = {name.replace("_", ""): name for name in cls.model_fields}
        try:
            named = {fields.get(name.lower(), name): value for name, value in given.items()}
            return cls.model_validate({"config": None, **named})
        except ValidationError as error:
            wrong = error.errors(include_input=False)[0]
            raise PipelineError(f"jetstream: option {wrong['loc'][0]}: {wrong['msg']}") from None

    def settings(self) -> Settings:
        """Load the settings in this process."""
        return load_settings(needs=("nats_url",), config=self.config)

    def first_seq(self, state: "StreamInfo") -> int | None:
        """Return the first sequence to read; None: the stream's first message, whichever that is."""
        return state.last_seq + 1 if self.start_seq == "latest" else self.start_seq

    def check(self, state: "StreamInfo", *, created: str, last: int, first: int | None = None) -> None:
        """Check that a stream still is the one created at this time, and has these sequences.

        Raises:
            DataLossError: it was created again; or, unless loss is allowed, it lacks sequences.
        """
        if state.created != created:
            raise DataLossError(
                f"stream {state.name} was deleted and created again: the former at {created}, the present "
                f"one at {state.created}; unread messages of the former are lost. Start from the beginning "
                "(a new checkpoint, no option created)"
            )
        if self.fail_on_data_loss and last > state.last_seq:
            raise DataLossError(
                f"stream {state.name} ends at sequence {state.last_seq}, before {last}: it was restored to "
                "an older state, or is another stream. Find the lost events with "
                "`python -m sea_mq_worker pipeline reconcile`, and start with a new checkpoint, "
                f"{_OR_CONTINUE}"
            )
        if self.fail_on_data_loss and first is not None and first < state.first_seq:
            raise DataLossError(
                f"stream {state.name}: sequences {first} to {state.first_seq - 1} were removed, by its "
                f"limits or by a purge, before they were read; it begins at {state.first_seq} now. Read the "
                "events from the outbox or its archive, raise max_age and max_bytes of the stream, "
                f"{_OR_CONTINUE}"
            )


class JetStreamSource(DataSource):
    """``spark.read.format("jetstream").option("stream", "SEA_EVENTS")``; see JetStreamOptions."""

    def __init__(self, options: dict[str, str]) -> None:
        """Parse the options; a wrong option is an error immediately.

        Raises:
            PipelineError: an option is unknown, wrong or missing.
        """
        super().__init__(options)
        self._chosen = JetStreamOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "jetstream"

    def schema(self) -> str:
        """Return the columns, which are the same for every stream; ``columns.SCHEMA`` explains them."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by name
        """Return the reader of ``spark.read``."""
        return JetStreamReader(self._chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of ``spark.readStream``."""
        return JetStreamStreamReader(self._chosen)


class JetStreamReader(DataSourceReader):
    """Reads the messages that the stream has at planning, in ranges that tasks read in parallel."""

    def __init__(self, options: JetStreamOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the stream's sequences among tasks.

        Raises:
            DataLossError: the stream does not have the requested sequences.
        """
        from sea_mq_worker.pipeline.jetstream.reading import split_range
        from sea_mq_worker.pipeline.jetstream.state import stream_state

        options = self._options
        state = stream_state(options.settings(), options.stream)
        begin = options.first_seq(state)
        first = begin or state.first_seq
        last = state.last_seq if options.end_seq is None else options.end_seq
        created = options.created or state.created
        lost = first if first <= last else None
        options.check(state, created=created, first=lost, last=max(first - 1, last))
        return split_range(
            created,
            max(first, state.first_seq),
            min(last, state.last_seq),
            size=options.rows_per_partition,
            floats=begin is None,
        )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one range."""
        from sea_mq_worker.pipeline.jetstream.reading import SequenceRange, read_range

        assert isinstance(partition, SequenceRange)  # noqa: S101 - of partitions()
        return read_range(self._options, partition)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a query on the driver; ``read`` runs on the executors.

    An offset is the stream's name, its creation time and the next sequence; 0 is the stream's first message,
    whichever that is. The query ends with a DataLossError if messages were deleted before they were read, or
    if the stream was restored to an older state; with failOnDataLoss=false it continues with the messages
    that remain. A stream that was created again always ends the query.

    The first micro-batch of a query is empty, so a query with Trigger.Once, which Spark has deprecated, reads
    nothing the first time; Trigger.AvailableNow reads everything, before Spark 4.2 in one batch.
    """

    read = JetStreamReader.read

    def __init__(self, options: JetStreamOptions) -> None:
        self._options = options
        self._queried_at = float("-inf")
        self._target: int | None = None if options.end_seq is None else options.end_seq + 1
        self._begins = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        self._begins = True
        state = self._queried()
        offset = self._offset(state, self._options.first_seq(state) or 0)
        self._first_unread(offset, state)
        return offset

    def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802
        """Return the limit of a micro-batch."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        rows = self._options.max_msgs_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: "ReadLimit | None" = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends.

        Of a query's first micro-batch Spark stores only the end. After a crash it would compute the begin
        again, with another result. So the first one is empty: its end is the query's begin. Spark before 4.2
        tells neither begin nor limit: there the begin must not depend on the time, and ``partitions`` checks
        it.

        Raises:
            DataLossError: the stream does not continue from the query's offset.
            PipelineError: this Spark cannot begin at the stream's end.
        """
        if start is None and self._options.start_seq == "latest":
            raise PipelineError("startSeq=latest in a query needs Spark 4.2: name the first sequence to read")
        if start is not None and self._begins:
            self._begins = False
            return start
        state = self._queried()
        end = state.last_seq + 1 if self._target is None else min(state.last_seq + 1, self._target)
        if start is None:
            return self._offset(state, end)
        first = self._first_unread(start, state)
        if rows := getattr(limit, "max_rows", None):
            end = min(end, first + rows)
        return {**start, "next": end if end > first else min(start["next"], first)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the stream's present end, where a query with this trigger stops."""
        end = self._queried().last_seq + 1
        self._target = end if self._target is None else min(end, self._target)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a micro-batch among tasks.

        Raises:
            DataLossError: the stream does not continue from the query's offset.
            PipelineError: the query had read more than endSeq before a run with it.
        """
        from sea_mq_worker.pipeline.jetstream.reading import split_range

        is_first, self._begins = self._begins, False
        moved = start["next"] > end["next"] or any(start[name] != end[name] for name in ("stream", "created"))
        if moved and not is_first:  # the begin of the first one, if it is run again, is newer than its end
            self._first_unread(start, self._queried())
            if self._options.fail_on_data_loss:
                raise PipelineError(
                    f"the query has read up to {start['next'] - 1}, and endSeq is smaller: raise it, and "
                    "begin with a new checkpoint"
                )
        first = start["next"] or self._queried().first_seq
        if first >= end["next"]:
            return []
        size = self._options.rows_per_partition
        return split_range(end["created"], first, end["next"] - 1, size=size, floats=not start["next"])

    def _offset(self, state: "StreamInfo", following: int) -> dict[str, Any]:
        return {"stream": state.name, "created": self._options.created or state.created, "next": following}

    def _queried(self) -> "StreamInfo":
        """Query the leader once; wait up to a minute for unavailable servers."""
        from sea_mq_worker.pipeline.jetstream.state import IdleTimeout, stream_state

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

    def _first_unread(self, offset: Mapping[str, Any], state: "StreamInfo") -> int:
        """Return the first sequence after an offset that the stream has or will have; none may be lost."""
        if offset["stream"] != state.name:
            raise PipelineError(
                f"the checkpoint is of stream {offset['stream']}, and the query reads {state.name}: "
                "give each query a checkpoint of its own"
            )
        following = int(offset["next"])
        self._options.check(state, created=offset["created"], first=following or None, last=following - 1)
        return max(state.first_seq, min(following, state.last_seq + 1))
