"""Land streams in the lake by streaming queries: JetStream to bronze, and bronze to silver and gold.

Bronze alone tells where a stream is to be continued: after the highest sequence of its incarnation. So the
query of a stream begins there each time, and its checkpoint is temporary. The checkpoint of the other query
only saves time: silver and gold get what they lack, whatever is read again.
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from sea_mq_worker.errors import UnavailableError, WorkerError
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError, translated
from sea_mq_worker.pipeline.jetstream.columns import event_columns
from sea_mq_worker.pipeline.jobs.erase import without_erased
from sea_mq_worker.pipeline.jobs.incarnations import Place, find_place, last_landed
from sea_mq_worker.pipeline.jobs.silver import OF_BATCH, Counts, add_events, to_silver
from sea_mq_worker.pipeline.jobs.typed import EventSchema, catch_up
from sea_mq_worker.pipeline.lake import BRONZE, ERASED, GOLD, SILVER, Lake, Table, repeated
from sea_mq_worker.pipeline.metrics import serving
from sea_mq_worker.pipeline.session import configured
from sea_mq_worker.settings import Settings, config_file

_BATCH_BYTES = 2 * 2**30
_TASK_BYTES = 64 * 2**20
_TASK_ROWS_MAX = 250_000
_RESTARTS = 5
_PAUSE_SECONDS = 1.0
_PAUSE_SECONDS_MAX = 60.0
_HEALTHY_SECONDS = 300.0
_POLL_SECONDS = 0.2
_STOP_SECONDS = 60.0
_UPKEEP_SECONDS = 86_400.0

_RESTORED = "sea_mq.restored"
"""Property of a table: the version of its last RESTORE, which its history may have lost."""

_HISTORY = 100
"""Commits of a table that are searched for a RESTORE."""

_SAME_MESSAGE = """
t.stream = {stream} AND t.incarnation = {incarnation} AND t.seq > {landed}
AND t.stream = s.stream AND t.incarnation = s.incarnation AND t.seq = s.seq
"""
_ENDED = "the query was ended by somebody else"
_WENT_BACK = "bronze was set back to an older version"
_PASSING = re.compile(
    f"{_WENT_BACK}|{_ENDED}|failed to connect back|worker exited unexpectedly|DELTA_SCHEMA_CHANGED"
    "|CONCURRENT_STREAM_LOG"
)
"""Failures of a query that its next start cures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedStream:
    """Result for a stream.

    Attributes:
        stream: the stream's name.
        incarnation: distinguishes the stream from others with the same name.
        rows: messages added to bronze.
        last_seq: the last landed sequence.
        left: sequences after ``last_seq``, up to the stream's end at the start of this run.
    """

    stream: str
    incarnation: str
    rows: int
    last_seq: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandResult:
    """Result of a run.

    Attributes:
        streams: result per stream.
        rows: messages added to bronze.
        events: rows added to silver, without repeats, and including messages that an earlier run added to
            bronze.
        repeats: further copies of an ID, which are in bronze alone.
        differing: repeats whose body, type or time of occurrence is not that of the first copy.
        typed: rows added to typed tables.
        violations: rows added to quarantine, because they violate their schema.
        missing: descriptions of messages missing in the lake, if loss was accepted.
        seconds: duration.
    """

    streams: tuple[LandedStream, ...]
    rows: int = 0
    events: int = 0
    repeats: int = 0
    differing: int = 0
    typed: int = 0
    violations: int = 0
    missing: tuple[str, ...] = ()
    seconds: float = 0.0


def land(
    spark: SparkSession,
    settings: Settings,
    *,
    lake: str,
    streams: Collection[str] | None = None,
    every: float | None = None,
    batch_rows: int = 500_000,
    accept_loss: bool = False,
    dedupe_days: int | None = None,
    late_seconds: float = 60.0,
    vacuum_hours: int | None = None,
    schemas: Sequence[EventSchema] = (),
    checkpoints: str | None = None,
    metrics: str | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
    stop: threading.Event | None = None,
) -> LandResult:
    """Land the messages that the streams contain now, or all until stopped.

    Args:
        spark: the session, in which the source ``jetstream`` is registered.
        settings: settings for the connection to NATS.
        lake: the lake's address.
        streams: names of the streams; None: SEA_MQ_STREAM and the consumers' streams.
        every: seconds between the beginnings of two batches; None: end when caught up.
        batch_rows: sequences per batch; fewer if they exceed 2 GiB.
        accept_loss: continue if messages were deleted before they were landed, and report them.
        dedupe_days: search so many days before a batch for copies of an ID; None: all of silver.
        late_seconds: an event is late if it was stored more than this after it occurred.
        vacuum_hours: delete files that no version of this many hours needs; None: never.
        schemas: of the events that have typed tables.
        checkpoints: folder of the checkpoint of silver's query; None: ``_checkpoints`` in the lake.
        metrics: ``HOST:PORT`` at which metrics are served for Prometheus meanwhile.
        on_progress: called with a text after each batch.
        stop: ends the run, without loss, when set.

    Raises:
        DataLossError: a stream lost messages before they were landed; the other streams were landed.
        BrokerUnavailableError: the broker did not come back in time.
        PipelineError: the lake cannot be read or written, or the session is Spark Connect's.
    """
    if is_remote():
        raise PipelineError(
            "`land` needs a Spark session of its own process, since its queries count in the driver what they"
            " add; a Spark Connect server runs all other jobs"
        )
    started = time.monotonic()
    missing: dict[str, None] = {}

    def report_loss(text: str) -> None:
        if not accept_loss:
            raise DataLossError(text)
        missing[text] = None

    with configured(spark), serving(spark, metrics):
        tables, counts = Lake(spark, lake), Counts()
        add = partial(
            add_events, counts=counts, dedupe_days=dedupe_days, late_seconds=late_seconds, schemas=schemas
        )
        _create_tables(tables, add)
        counts.typed, counts.violations = catch_up(tables, schemas)
        trigger = {"availableNow": True} if every is None else {"processingTime": f"{every} seconds"}
        to_bronze = partial(
            _ToBronze,
            tables,
            settings,
            batch_rows=batch_rows,
            trigger=trigger,
            on_loss=report_loss,
            on_progress=on_progress,
        )
        bronze = [to_bronze(name) for name in dict.fromkeys(streams or _streams(settings))]
        silver = _ToSilver(tables, add, trigger, checkpoints)
        follow = partial(
            _follow, stop=stop or threading.Event(), forever=every is not None, on_progress=on_progress
        )
        upkeep = partial(tables.vacuum, (BRONZE, SILVER, GOLD), vacuum_hours)
        if every is None:
            lost = follow(bronze) + follow([silver])
            upkeep()
        else:
            lost = follow([*bronze, silver], daily=upkeep)
        landed = tuple(query.result() for query in bronze if query.place)
    if lost:
        raise DataLossError("\n".join(lost))
    return LandResult(
        streams=landed,
        rows=sum(each.rows for each in landed),
        **asdict(counts),
        missing=tuple(missing),
        seconds=round(time.monotonic() - started, 3),
    )


def remaining(
    spark: SparkSession, settings: Settings, *, lake: str, streams: Collection[str] | None = None
) -> LandResult:
    """Count the sequences that a run would land, in ``left``, and change nothing."""
    with configured(spark):
        tables = Lake(spark, lake)
        places = [
            find_place(tables, settings, name, on_loss=lambda _text: None)
            for name in dict.fromkeys(streams or _streams(settings))
        ]
    return LandResult(streams=tuple(_result(place, rows=0, last=place.landed) for place in places))


def _streams(settings: Settings) -> list[str]:
    return [settings.stream, *(consumer.stream for consumer in settings.consumers)]


def _result(place: Place, *, rows: int, last: int) -> LandedStream:
    left = max(0, place.last - max(last, place.first - 1))
    return LandedStream(
        stream=place.stream, incarnation=place.incarnation, rows=rows, last_seq=last, left=left
    )


# --- The tables.


def _create_tables(lake: Lake, add: Callable[[Lake, DataFrame, DataFrame], None]) -> None:
    """Create the tables, or continue those of release 1.0.

    Its silver lacks events of several streams with equal IDs, and its bronze has no columns that describe
    events. Bronze gets them after silver is complete, so that a run that was killed before does this again.
    """
    lake.create(SILVER)
    lake.create(GOLD)
    if lake.exists(BRONZE.name) and "message_id" not in lake.read(BRONZE.name).columns:
        old = lake.read(BRONZE.name)
        for [day] in old.select("date").distinct().orderBy("date").collect():
            described = old.where(fn.col("date") == day).mapInArrow(_describe, BRONZE.ddl)
            add(lake, described, to_silver(without_erased(lake, described)))
    lake.create(BRONZE)


def _describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the columns that describe events to rows of bronze."""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= event_columns(columns)
        yield pa.RecordBatch.from_pydict({name: columns[name] for name in BRONZE.columns})


# --- The queries.


class _Query(Protocol):
    """A query that can be started again."""

    name: str
    is_part: bool
    """Whether the query ends early, and its next start continues."""

    def start(self) -> StreamingQuery:
        """Start the query where its target's tables end."""


class _ToBronze:
    """The query from a stream to bronze."""

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        stream: str,
        *,
        batch_rows: int,
        trigger: Mapping[str, Any],
        on_loss: Callable[[str], None],
        on_progress: Callable[[str], None],
    ) -> None:
        self.name = f"land {stream}"
        self.place: Place | None = None
        self.is_part = False
        self._lake, self._settings, self._stream = lake, settings, stream
        self._batch_rows, self._trigger = batch_rows, trigger
        self._on_loss, self._on_progress = on_loss, on_progress
        self._rows, self._sizes = 0, 1

    def start(self) -> StreamingQuery:
        place = find_place(self._lake, self._settings, self._stream, on_loss=self._on_loss)
        is_gap = self.is_part and self.place is not None and self.place.landed == place.landed
        self.place, self._sizes = place, self._sizes * 2 if is_gap else 1
        size, part = (
            max(1, min(most, int(most_bytes / max(place.row_bytes, 1))))
            for most, most_bytes in ((self._batch_rows, _BATCH_BYTES), (_TASK_ROWS_MAX, _TASK_BYTES))
        )
        source = self._lake.spark.readStream.format("jetstream").options(
            stream=place.stream,
            created=place.created,
            maxMsgsPerTrigger=str(size),
            rowsPerPartition=str(part),
        )
        if file := config_file():
            source = source.option("config", file)
        first, trigger = max(place.landed + 1, place.first), self._trigger
        if place.landed:
            source = source.option("startSeq", str(first))
        # Spark before 4.2 knows no limit of a batch; there a query is a batch until it has almost caught up.
        end = first + size * self._sizes - 1
        is_old = tuple(map(int, self._lake.spark.version.split(".")[:2])) < (4, 2)
        self.is_part = is_old and end < place.last
        if self.is_part:
            source, trigger = source.option("endSeq", str(end)), {"availableNow": True}
        add = partial(self._add, _Landed(place.landed))
        # Without the option checkpointLocation, Spark deletes the checkpoint at the end.
        return source.load().writeStream.queryName(self.name).foreachBatch(add).trigger(**trigger).start()

    def result(self) -> LandedStream:
        assert self.place  # noqa: S101 - it was started
        place = self.place
        last = last_landed(self._lake, place.stream, place.incarnation, at_least=place.landed)
        return _result(place, rows=self._rows, last=last)

    def _add(self, landed: "_Landed", batch: DataFrame, number: int) -> None:
        """Insert the messages of a batch that bronze lacks; another run may have landed some of them."""
        if number == 0 and batch.isEmpty():
            return
        assert self.place  # noqa: S101 - it was started
        place, lake, started = self.place, Lake(batch.sparkSession, self._lake.address), time.monotonic()
        last = last_landed(lake, place.stream, place.incarnation, at_least=landed.at_least)
        landed.check(last)
        new = batch.where(fn.col("seq") > last).withColumns(
            {"incarnation": fn.lit(place.incarnation), "date": fn.to_date("time")}
        )
        is_watched = lake.exists(ERASED.name)
        rows = without_erased(lake, new.persist()) if is_watched else new
        literals = {"stream": place.stream, "incarnation": place.incarnation, "landed": last}
        try:
            added = repeated(lambda: lake.insert_new(BRONZE.name, rows, _SAME_MESSAGE, **literals))
        finally:
            if is_watched:
                new.unpersist()
        landed.at_least = last + added
        self._rows += added
        rate = added / (time.monotonic() - started)
        self._on_progress(f"{self.name}: {added:,} messages after sequence {last:,}, {rate:,.0f} a second")


@dataclass(slots=True)
class _Landed:
    """The sequence that bronze has got to, as far as a query knows."""

    at_least: int

    def check(self, last: int) -> None:
        """Check that bronze still has what was landed.

        Raises:
            PipelineError: bronze was restored to an older version; the query has to begin there.
        """
        if last < self.at_least:
            raise PipelineError(f"{_WENT_BACK}: it ends at {last}, after {self.at_least} was landed")


class _ToSilver:
    """The query from bronze to silver and gold."""

    name = "silver"
    is_part = False

    def __init__(
        self,
        lake: Lake,
        add: Callable[[Lake, DataFrame, DataFrame], None],
        trigger: Mapping[str, Any],
        checkpoints: str | None,
    ) -> None:
        self._lake, self._add, self._trigger = lake, add, trigger
        self._checkpoints = checkpoints or lake.folder("_checkpoints")

    def start(self) -> StreamingQuery:
        # Of other tables, as after one was made anew or restored, a checkpoint would tell nothing.
        states = " ".join(_identity(self._lake, table) for table in (BRONZE, SILVER, GOLD))
        name = f"silver-{hashlib.sha256(states.encode()).hexdigest()[:32]}"
        messages = self._lake.follow(BRONZE.name, skipChangeCommits="true", maxBytesPerTrigger="1g")
        return (
            messages.select(*OF_BATCH)
            .writeStream.queryName(self.name)
            .option("checkpointLocation", f"{self._checkpoints}/{name}")
            .foreachBatch(self._add_batch)
            .trigger(**self._trigger)
            .start()
        )

    def _add_batch(self, batch: DataFrame, _number: int) -> None:
        lake = Lake(batch.sparkSession, self._lake.address)
        self._add(lake, batch, to_silver(without_erased(lake, lake.read(BRONZE.name))))


def _identity(lake: Lake, table: Table) -> str:
    """Return a table's ID, and the version of its last RESTORE, if no run went on meanwhile."""
    name = lake.table(table.name)
    [detail] = lake.spark.sql(f"DESCRIBE DETAIL {name}").select("id", "properties").collect()
    history = lake.spark.sql(f"DESCRIBE HISTORY {name} LIMIT {_HISTORY}")
    restored = history.where("operation = 'RESTORE'").select("version").collect()
    known = int(detail["properties"].get(_RESTORED, 0))
    newest = max([known, *(row["version"] for row in restored)])
    if newest > known:
        repeated(lambda: lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_RESTORED}' = '{newest}')"))
    return f"{detail['id']} {newest}"


# --- Following the queries.


class _Followed:
    """A query, and its starts."""

    def __init__(self, query: _Query, *, forever: bool, on_progress: Callable[[str], None]) -> None:
        self.ended = False
        self.lost = ""
        self._wanted, self._forever, self._on_progress = query, forever, on_progress
        self._running: StreamingQuery | None = None
        self._due = self._started = 0.0
        self._failures = 0

    def look(self) -> None:
        """Start the query if it is due, and again some time after a passing failure.

        Raises:
            WorkerError: the failure will not pass, or has not for too long.
        """
        try:
            with translated():
                if self._running is None:
                    if time.monotonic() >= self._due:
                        self._started = time.monotonic()
                        self._running = self._wanted.start()
                elif not self._running.isActive:
                    if failure := self._running.exception():
                        raise failure
                    if self._forever and not self._wanted.is_part:
                        raise PipelineError(f"{_ENDED}: does another run land in this lake?")
                    self._running, self.ended = None, not self._wanted.is_part
        except WorkerError as error:
            begun, self._running = self._running, None
            self._failed(error, was_running=begun is not None)

    def stop(self) -> None:
        """Stop the query, if possible after its batch; the next run does again what was not committed."""
        if self._running is None:
            return
        patience = time.monotonic() + _STOP_SECONDS
        while self._running.isActive and self._running.status["isTriggerActive"]:
            if time.monotonic() > patience:
                break
            time.sleep(_POLL_SECONDS)
        self._running.stop()

    def _failed(self, error: WorkerError, *, was_running: bool) -> None:
        if isinstance(error, DataLossError) and not was_running:
            self.lost, self.ended = str(error), True
            self._on_progress(f"{self._wanted.name}: {error}")
            return
        if time.monotonic() - self._started > _HEALTHY_SECONDS:
            self._failures = 0
        self._failures += 1
        is_outage = isinstance(error, UnavailableError)
        # What the source takes for a loss may have been landed; the next start decides.
        passes = is_outage or isinstance(error, DataLossError) or _PASSING.search(str(error))
        if not passes or (self._failures > _RESTARTS and not (is_outage and self._forever)):
            raise error
        pause = min(_PAUSE_SECONDS * 2**self._failures, _PAUSE_SECONDS_MAX)
        self._due = time.monotonic() + pause
        self._on_progress(f"{self._wanted.name}: begins again in {pause:g} s: {error}")


def _follow(
    queries: Sequence[_Query],
    *,
    stop: threading.Event,
    forever: bool,
    on_progress: Callable[[str], None],
    daily: Callable[[], None] = lambda: None,
) -> list[str]:
    """Run queries side by side until all have ended; return what their streams lost."""
    followed = [_Followed(query, forever=forever, on_progress=on_progress) for query in queries]
    upkeep_at = 0.0
    try:
        while not all(each.ended for each in followed):
            for each in followed:
                if not each.ended:
                    each.look()
            if time.monotonic() >= upkeep_at:
                daily()
                upkeep_at = time.monotonic() + _UPKEEP_SECONDS
            if stop.wait(_POLL_SECONDS):
                break
    finally:
        for each in followed:
            each.stop()
    return [each.lost for each in followed if each.lost]
