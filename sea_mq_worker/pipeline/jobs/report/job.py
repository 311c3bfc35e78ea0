"""Report: figures for one page about the events and messages of a period.

All figures are from one snapshot of the tables. With a lake, archived events also count, each once even if
it is in both places or was archived twice. Messages that `prune` deleted from the inbox are not counted.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.executor_settings import access_options
from sea_mq_worker.pipeline.jobs.report import queries
from sea_mq_worker.pipeline.jobs.report.model import Bin, Report, Totals
from sea_mq_worker.pipeline.jobs.report.queries import Count, Period
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, GOLD
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.session import described
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
        settings: with a NATS server, dead letters are read from their stream; otherwise from the inbox.
        since: begin of the period; by default the time of the first event or message.
        until: end of the period, not included; by default now.
        lake: where archived events are; None: count only the events in the table.
        on_progress: called with a text at each step.

    Raises:
        WorkerError: PostgreSQL or the lake cannot be read.
    """
    with described(spark, "report"), snapshot(settings) as held:
        on_progress(f"reading outbox and inbox as of {held.at:%Y-%m-%d %H:%M:%S} UTC")
        with (
            _cached(_events(spark, held, lake, settings.context)) as events,
            _cached(_messages(spark, held)) as messages,
        ):
            period = _period(events, messages, since, until or held.at)
            on_progress(f"counting {period.since:%Y-%m-%d %H:%M:%S} to {period.until:%Y-%m-%d %H:%M:%S} UTC")
            tables = _Tables(events, messages, period, held.at)
            flow = _flow(tables)
            on_progress("counting dead letters")
            source = settings.dlq_stream if settings.nats_url.get_secret_value() else None
            letters = _letters(spark, source) if source else _inbox_letters(messages)
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
                **_current_figures(tables),
            )


@dataclass(frozen=True, slots=True)
class _Tables:
    events: DataFrame
    messages: DataFrame
    period: Period
    at: datetime


def _flow(tables: _Tables) -> dict[str, Any]:
    """Return the report's fields about time."""
    events, messages, period = tables.events, tables.messages, tables.period
    found = queries.counts(_moments(events, messages), period)
    published = queries.ended(events, "outbox", "occurred_at", "published_at")
    processed = queries.ended(messages, "inbox", "received_at", "processed_at")
    ended = published.unionByName(processed)
    return {
        "totals": _totals(found),
        "bins": [_bin(found, at) for at in period.begins()],
        "latencies": queries.latencies(ended, period),
        "attempts": queries.attempts(ended, period),
    }


def _ended(letters: DataFrame, period: Period) -> dict[str, Any]:
    """Return the report's fields about dead letters."""
    with _cached(letters) as cached:
        groups, over_time, count = queries.dead_letters(cached, period)
    return {"dead_letters": groups, "dead_letter_bins": over_time, "dead_letter_count": count}


def _current_figures(tables: _Tables) -> dict[str, Any]:
    """Return the fields about dead events, largest shares and the backlog."""
    events, messages, period, at = tables.events, tables.messages, tables.period, tables.at
    unsent = events.where(F.col("state").isin("PENDING", "CLAIMED")).select(
        F.lit("outbox").alias("way"), "state", F.col("created_at").alias("begin")
    )
    return {
        "dead": queries.dead_events(events, period),
        "keys": queries.shares(events, period, "ordering_key"),
        "types": queries.shares(events, period, "event_type"),
        "backlog": queries.backlog(unsent.unionByName(_open(messages)), at),
    }


@contextmanager
def _cached(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory for several aggregates."""
    cached = frame.persist()
    try:
        yield cached
    finally:
        cached.unpersist()


def _events(spark: SparkSession, held: Snapshot, lake: str | None, context: str) -> DataFrame:
    """Return events with the size of their payload; ``archived``: the event is only in the lake.

    Several contexts may share a lake, so only this context's events are read.
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
    once = deduplicate_by(archived, "id", F.desc("published_at"))
    return events.unionByName(once.join(table.select("id"), "id", "left_anti"))


def _messages(spark: SparkSession, held: Snapshot) -> DataFrame:
    return read_inbox(spark, held, columns=_INBOX)


def _open(messages: DataFrame) -> DataFrame:
    state = F.when(F.col("dead_letter_begun_at").isNotNull(), "DEAD-LETTERING")
    state = state.when(F.col("attempts") > 1, "RETRIED").otherwise("RECEIVED")
    is_open = F.col("processed_at").isNull() & F.col("dead_lettered_at").isNull()
    return messages.where(is_open).select(
        F.lit("inbox").alias("way"), state.alias("state"), F.col("received_at").alias("begin")
    )


def _letters(spark: SparkSession, stream: str) -> DataFrame:
    source = spark.read.format("jetstream").options(stream=stream, **access_options()).load()
    return source.select(
        _header("Dlq-Reason").alias("reason"), _header("Dlq-Original-Subject").alias("subject"), "time"
    )


def _header(name: str) -> Column:
    value = F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return F.coalesce(value, F.lit(_UNKNOWN))


def _inbox_letters(messages: DataFrame) -> DataFrame:
    reason = F.coalesce("dead_letter_reason", F.lit(_UNKNOWN)).alias("reason")
    return messages.where("dead_lettered_at IS NOT NULL").select(
        reason, "subject", F.col("dead_lettered_at").alias("time")
    )


def _period(events: DataFrame, messages: DataFrame, since: datetime | None, until: datetime) -> Period:
    """Return the period; by default it ends at the time of the snapshot."""
    first = since or queries.first_moment([(events, "created_at"), (messages, "received_at")], until)
    return Period.of(first or until - timedelta(hours=1), until)


def _moments(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the moments of outbox and inbox in one frame, so that one pass counts them."""
    none = {"size": F.lit(0), "dead": F.lit(False), "archived": F.lit(False)}
    times = {"received": "received_at", "processed": "processed_at", "dead_lettered": "dead_lettered_at"}
    inbox = queries.moments(messages, times, **none)
    measures = {"size": F.col("size"), "dead": F.col("state") == "DEAD", "archived": F.col("archived")}
    outbox = queries.moments(events, {"written": "created_at", "published": "published_at"}, **measures)
    return outbox.unionByName(inbox)


def _bin(found: Mapping[tuple[str, datetime], Count], at: datetime) -> Bin:
    def of(what: str) -> Count:
        return found.get((what, at), Count())

    return Bin(
        at=at,
        **{what: of(what).count for what in ("written", "published", "received", "processed")},
        outbox_retried=of("published").retried,
        inbox_retried=of("processed").retried,
    )


def _totals(found: Mapping[tuple[str, datetime], Count]) -> Totals:
    def total(what: str, measure: str = "count") -> int:
        return sum(getattr(count, measure) for (each, _), count in found.items() if each == what)

    return Totals(
        written=total("written"),
        written_bytes=total("written", "size"),
        published=total("published"),
        outbox_retried=total("published", "retried"),
        dead=total("written", "dead"),
        received=total("received"),
        processed=total("processed"),
        inbox_retried=total("processed", "retried"),
        dead_lettered=total("dead_lettered"),
        archived=total("written", "archived"),
    )
