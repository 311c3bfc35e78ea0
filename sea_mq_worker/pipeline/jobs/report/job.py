"""Report: figures for one page about the events and messages of a period.

All figures are from one snapshot of the tables. With a lake, archived events count too. An event with several
rows in table and archive counts once: by its unpublished row, else by the one published last. Messages that
`prune` deleted from the inbox are not counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from importlib.resources import files

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.pipeline.dataframes import deduplicate_by, read_all
from sea_mq_worker.pipeline.job_run import job_run, lake_datasets, table_datasets
from sea_mq_worker.pipeline.jobs.report.figures import GROUPS_MAX, Period, figures
from sea_mq_worker.pipeline.jobs.report.model import AGES, ATTEMPTS_MAX, BacklogCount, Report
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, GOLD
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import Condition, Snapshot, read_inbox, read_outbox, snapshot
from sea_mq_worker.pipeline.sources.jetstream.columns import SCHEMA
from sea_mq_worker.pipeline.sources.jetstream.options import JetStreamOptions
from sea_mq_worker.pipeline.sources.jetstream.source import JetStreamReader
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

_COUNTED = files(__package__).joinpath("figures.sql").read_text(encoding="utf-8")
_QUERIES = load_queries("pipeline_report")
_LIMITS = {
    "attempts_max": ATTEMPTS_MAX,
    "groups_max": GROUPS_MAX,
    "reasons": [*map(str, Reason), "CLOSED"],
}
_EVENT = ("id", "event_type", "ordering_key", "occurred_at", "created_at", "published_at", "publish_attempts")
_MESSAGE = ("received_at", "processed_at", "dead_lettered_at", "attempts")
_CLOCK_STEP_MAX = timedelta(hours=1)
"""Cap on the time by which an event may be published before its creation."""


def report(
    spark: SparkSession,
    settings: Settings,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    lake: str | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Gather the figures of a period.

    Args:
        spark: the session.
        settings: with a NATS server, dead letters are read from their stream; otherwise from the inbox.
        since: begin of the period; by default the time of the first event or message.
        until: end of the period, not included; by default now.
        lake: where archived events are; None: count only the events in the table.
        on_progress: called with a text at each step.

    Raises:
        WorkerError: PostgreSQL or the lake cannot be read.
    """
    reads = table_datasets(settings, "outbox_events", "inbox_messages") + lake_datasets(lake, ARCHIVE, GOLD)
    with job_run(spark, settings, "report", reads=reads, writes=()) as session, snapshot(settings) as held:
        on_progress(f"reading outbox and inbox as of {held.at:%Y-%m-%d %H:%M:%S} UTC")
        source = settings.dlq_stream if settings.nats_url.get_secret_value() else None
        until = until or held.at
        first = since or _first(held, lake, settings.context)
        period = Period.of(first if first and first < until else until - timedelta(hours=1), until)
        on_progress(f"counting {period.since:%Y-%m-%d %H:%M:%S} to {period.until:%Y-%m-%d %H:%M:%S} UTC")
        rows = session.sql(
            _COUNTED,
            args=_LIMITS | asdict(period),
            events=_events(session, held, period, lake, settings.context),
            messages=_messages(session, held, period),
            letters=_letters(session, held, period, source),
            minutes=_minutes(session, period, lake),
        ).collect()
        backlog = held.rows(_QUERIES["backlog"])
        return Report(
            context=settings.context,
            at=held.at,
            since=period.since,
            until=period.until,
            bin_seconds=period.step,
            lake=lake is not None,
            dead_letter_source=source,
            backlog=[BacklogCount(**{**row, "age": AGES[row["age"]]}) for row in backlog],
            **figures(rows, period),
        )


def _first(held: Snapshot, lake: str | None, context: str) -> datetime | None:
    """Return the time of the first event or message, whole seconds; None: there is none."""
    (row,) = held.rows(_QUERIES["first"])
    times = [row["at"]]
    if lake:
        archived = LakeTable(lake, ARCHIVE).entries([("context", "=", context)])
        found = pc.min(archived["min.created_at"]).as_py()
        times.append(found and found.replace(microsecond=0))
    return min(filter(None, times), default=None)


def _events(spark: SparkSession, held: Snapshot, period: Period, lake: str | None, context: str) -> DataFrame:
    """Return the events that can be part of the period, each once; ``archived``: the row is the archive's.

    An event is part of the period if it was created or published in it. A publication precedes the creation
    after PostgreSQL's clock was set back.
    """
    since, until = period.since - _CLOCK_STEP_MAX, period.until + _CLOCK_STEP_MAX
    rows = read_outbox(
        spark,
        held,
        columns=(*_EVENT, "payload_bytes", "state", "publish_error"),
        where=[("created_at", "<", until), ("coalesce(published_at, 'infinity')", ">=", since)],
    ).withColumn("archived", F.lit(False))
    if not lake:
        return rows
    of_period = [("date", ">=", since.date()), ("published_at", ">=", since), ("created_at", "<", until)]
    conditions = [("context", "=", context), *of_period]
    archived = LakeTable(lake, ARCHIVE).read(spark, conditions, columns=(*_EVENT, "payload"))
    given = {"payload_bytes": F.octet_length("payload"), "state": F.lit("PUBLISHED"), "archived": F.lit(True)}
    rows = rows.unionByName(archived.withColumns(given).drop("payload"), allowMissingColumns=True)
    return deduplicate_by(rows, "id", F.desc_nulls_first("published_at"), "archived")


def _messages(spark: SparkSession, held: Snapshot, period: Period) -> DataFrame:
    settled = "coalesce(processed_at, dead_lettered_at, 'infinity')"
    where: Sequence[Condition] = [("received_at", "<", period.until), (settled, ">=", period.since)]
    return read_inbox(spark, held, columns=_MESSAGE, where=where)


def _letters(spark: SparkSession, held: Snapshot, period: Period, stream: str | None) -> DataFrame:
    """Return dead letters of a stream, or of the inbox: reason, subject, time."""
    if stream:
        rows = read_all(spark, JetStreamReader(JetStreamOptions(stream=stream)), from_arrow_schema(SCHEMA))
        return rows.select(
            _header("Dlq-Reason").alias("reason"), _header("Dlq-Original-Subject").alias("subject"), "time"
        )
    at = "dead_lettered_at"
    where: Sequence[Condition] = [(at, ">=", period.since), (at, "<", period.until)]
    rows = read_inbox(spark, held, columns=("dead_letter_reason", "subject", at), where=where)
    return rows.toDF("reason", "subject", "time")


def _header(name: str) -> Column:
    value = F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return F.coalesce(value, F.lit("unknown"))


def _minutes(spark: SparkSession, period: Period, lake: str | None) -> DataFrame:
    """Return the minutes of gold that can overlap the period."""
    if not lake:
        return spark.createDataFrame([], "context string, minute timestamp, events bigint")
    since = period.since - timedelta(minutes=1)
    of_period = [("date", ">=", since.date()), ("minute", ">", since), ("minute", "<", period.until)]
    return LakeTable(lake, GOLD).read(spark, of_period, columns=("context", "minute", "events"))
