"""Report: what went through outbox and inbox in a period, as figures for one page.

Everything is read as of one moment of the tables. With a lake, events that were archived and deleted count
as well; one that is in both, or was archived twice, counts once. Messages that `prune` removed from the inbox
are in no figure.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.access import access_options
from sea_mq_worker.pipeline.frames import first_of_each
from sea_mq_worker.pipeline.jobs.report import queries
from sea_mq_worker.pipeline.jobs.report.figures import Bin, Report, Totals
from sea_mq_worker.pipeline.jobs.report.queries import Period
from sea_mq_worker.pipeline.lake.layouts import ARCHIVE, GOLD
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.snapshot import Snapshot, read_inbox, read_outbox, snapshot
from sea_mq_worker.settings import Settings

_EVENT = ("id", "event_type", "ordering_key", "occurred_at", "created_at", "published_at")
_OUTBOX = (*_EVENT, "payload", "publish_attempts", "state", "publish_error")
_INBOX = (
    *("subject", "received_at", "processed_at", "attempts"),
    *("dead_letter_reason", "dead_letter_begun_at", "dead_lettered_at"),
)
_UNKNOWN = "unknown"


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
        settings: dead letters are read from their stream where these name a NATS server, else from the inbox.
        since: the begin; the first event or message there is unless given.
        until: the end, not included; now unless given.
        lake: where archived events are; those in the table alone count unless given.
        on_progress: is told in words what is being done.

    Raises:
        WorkerError: PostgreSQL or the lake cannot be read.
    """
    with snapshot(settings) as held:
        on_progress(f"reading outbox and inbox as of {held.at:%Y-%m-%d %H:%M:%S} UTC")
        with (
            _kept(_events(spark, held, lake, settings.context)) as events,
            _kept(_messages(spark, held)) as messages,
        ):
            period = _period(events, messages, since, until or held.at)
            on_progress(f"counting {period.since:%Y-%m-%d %H:%M:%S} to {period.until:%Y-%m-%d %H:%M:%S} UTC")
            tables = _Tables(events, messages, period, held.at)
            flow = _flow(tables)
            on_progress("counting dead letters")
            source = settings.dlq_stream if settings.nats_url.get_secret_value() else None
            letters = _letters(spark, source) if source else _noted_letters(messages)
            ended = _ended(letters, period)
            on_progress("counting keys, types and the backlog")
            gold = LakeTable(lake, GOLD).read(spark) if lake else None
            return Report(
                context=settings.context,
                at=held.at,
                since=period.since,
                until=period.until,
                bin_seconds=period.step,
                lake=lake is not None,
                dead_letter_source=source,
                stream_bins=[] if gold is None else queries.stream_bins(gold, period),
                **flow,
                **ended,
                **_standing(tables),
            )


@dataclass(frozen=True, slots=True)
class _Tables:
    events: DataFrame
    messages: DataFrame
    period: Period
    at: datetime


def _flow(tables: _Tables) -> dict[str, Any]:
    """Return the fields of the report that are about time."""
    events, messages, period = tables.events, tables.messages, tables.period
    bins = _bins(events, messages, period)
    published = queries.latencies(events, period, "outbox", "occurred_at", "published_at")
    processed = queries.latencies(messages, period, "inbox", "received_at", "processed_at")
    return {
        "totals": _totals(events, messages, period, bins),
        "bins": bins,
        "latencies": [*published, *processed],
        "attempts": [
            *queries.attempts(events, period, "outbox", "published_at"),
            *queries.attempts(messages, period, "inbox", "processed_at"),
        ],
    }


def _ended(letters: DataFrame, period: Period) -> dict[str, Any]:
    """Return the fields of the report that are about dead letters."""
    with _kept(letters) as kept:
        groups, over_time, count = queries.dead_letters(kept, period)
    return {"dead_letters": groups, "dead_letter_bins": over_time, "dead_letter_count": count}


def _standing(tables: _Tables) -> dict[str, Any]:
    """Return the fields of the report that are about what there is, whenever it came."""
    events, messages, period, at = tables.events, tables.messages, tables.period, tables.at
    waiting = events.where(F.col("state").isin("PENDING", "CLAIMED"))
    return {
        "dead": queries.dead_events(events, period),
        "keys": queries.shares(events, period, "ordering_key"),
        "types": queries.shares(events, period, "event_type"),
        "backlog": [
            *queries.backlog(waiting, "outbox", begin="created_at", at=at),
            *queries.backlog(_open(messages), "inbox", begin="received_at", at=at),
        ],
    }


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Read once what many aggregates need."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _events(spark: SparkSession, held: Snapshot, lake: str | None, context: str) -> DataFrame:
    """Return events with their payload's size alone; ``archived`` are those that are only in the lake.

    Several contexts may share a lake: the others' events are not in this one's figures.
    """
    table = read_outbox(spark, held, columns=_OUTBOX)
    events = table.select(
        *_EVENT,
        F.col("publish_attempts").alias("attempts"),
        F.octet_length("payload").alias("size"),
        "state",
        "publish_error",
        F.lit(False).alias("archived"),
    )
    if not lake:
        return events
    rows = LakeTable(lake, ARCHIVE).read(spark, [("context", "=", context)])
    archived = rows.where(F.col("context") == context).select(
        *_EVENT,
        F.col("publish_attempts").alias("attempts"),
        F.octet_length("payload").alias("size"),
        F.lit("PUBLISHED").alias("state"),
        F.lit(None).cast("string").alias("publish_error"),
        F.lit(True).alias("archived"),
    )
    once = first_of_each(archived, "id", F.desc("published_at"))
    return events.unionByName(once.join(table.select("id"), "id", "left_anti"))


def _messages(spark: SparkSession, held: Snapshot) -> DataFrame:
    return read_inbox(spark, held, columns=_INBOX)


def _open(messages: DataFrame) -> DataFrame:
    state = F.when(F.col("dead_letter_begun_at").isNotNull(), "BECOMING A DEAD LETTER")
    state = state.when(F.col("attempts") > 1, "TRIED AGAIN").otherwise("RECEIVED")
    is_open = F.col("processed_at").isNull() & F.col("dead_lettered_at").isNull()
    return messages.where(is_open).select(state.alias("state"), "received_at")


def _letters(spark: SparkSession, stream: str) -> DataFrame:
    source = spark.read.format("jetstream").options(stream=stream, **access_options()).load()
    return source.select(
        _header("Dlq-Reason").alias("reason"), _header("Dlq-Original-Subject").alias("subject"), "time"
    )


def _header(name: str) -> Column:
    value = F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return F.coalesce(value, F.lit(_UNKNOWN))


def _noted_letters(messages: DataFrame) -> DataFrame:
    reason = F.coalesce("dead_letter_reason", F.lit(_UNKNOWN)).alias("reason")
    return messages.where("dead_lettered_at IS NOT NULL").select(
        reason, "subject", F.col("dead_lettered_at").alias("time")
    )


def _period(events: DataFrame, messages: DataFrame, since: datetime | None, until: datetime) -> Period:
    """Choose the period; it ends with the microsecond of the snapshot."""
    first = since or queries.first_moment([(events, "created_at"), (messages, "received_at")], until)
    return Period.of(first or until - timedelta(hours=1), until)


def _bins(events: DataFrame, messages: DataFrame, period: Period) -> list[Bin]:
    every, again = F.lit(True), F.col("attempts") > 1
    parts = (
        queries.counts(events, period, "created_at", written=every),
        queries.counts(events, period, "published_at", published=every, outbox_retried=again),
        queries.counts(messages, period, "received_at", received=every),
        queries.counts(messages, period, "processed_at", processed=every, inbox_retried=again),
    )
    return [
        Bin(at=at, **{name: count for part in parts for name, count in part.get(at, {}).items()})
        for at in period.begins()
    ]


def _totals(events: DataFrame, messages: DataFrame, period: Period, bins: list[Bin]) -> Totals:
    written = events.where(period.holds("created_at")).agg(
        F.coalesce(F.sum("size"), F.lit(0)).alias("size"),
        F.count_if(F.col("state") == "DEAD").alias("dead"),
        F.count_if("archived").alias("archived"),
    )
    (row,) = written.collect()
    return Totals(
        written=sum(each.written for each in bins),
        written_bytes=row["size"],
        published=sum(each.published for each in bins),
        outbox_retried=sum(each.outbox_retried for each in bins),
        dead=row["dead"],
        received=sum(each.received for each in bins),
        processed=sum(each.processed for each in bins),
        inbox_retried=sum(each.inbox_retried for each in bins),
        dead_lettered=messages.where(period.holds("dead_lettered_at")).count(),
        archived=row["archived"],
    )
