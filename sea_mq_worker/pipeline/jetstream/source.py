"""The Spark data source ``jetstream``: a stream's messages as rows, in one read or as a streaming query.

Needs the permissions to publish to ``$JS.API.STREAM.INFO``, ``$JS.API.STREAM.MSG.GET`` and
``$JS.API.DIRECT.GET`` of the stream, on the driver and on the executors. It changes nothing on the server.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jetstream.columns import SCHEMA
from sea_mq_worker.pipeline.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.jetstream.reader import SequenceRange, read_range, split_range
from sea_mq_worker.pipeline.jetstream.state import stream_state


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

    def schema(self) -> StructType:
        """Return the columns, which are the same for every stream."""
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by name
        """Return the reader of ``spark.read``."""
        return JetStreamReader(self._chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of ``spark.readStream``.

        Raises:
            PipelineError: this PySpark is older than 4.2.
        """
        try:
            from sea_mq_worker.pipeline.jetstream.stream import JetStreamStreamReader  # noqa: PLC0415
        except ModuleNotFoundError as error:
            text = f"a streaming query of jetstream needs PySpark 4.2 or newer; this is {pyspark.__version__}"
            raise PipelineError(text) from error
        return JetStreamStreamReader(self._chosen)


class JetStreamReader(DataSourceReader):
    """Reads the messages that the stream has at planning, in ranges that tasks read in parallel."""

    def __init__(self, options: JetStreamOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Divide the stream's sequences among tasks.

        Raises:
            DataLossError: the stream does not have the requested sequences.
        """
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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        assert isinstance(partition, SequenceRange)  # noqa: S101 - of partitions()
        return read_range(self._options, partition)
