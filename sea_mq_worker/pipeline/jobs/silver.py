"""Update silver and gold from new rows of bronze: one row per event, and counts per minute.

An event's first copy counts: of those in one batch the one stored first. An ID that is not a UUID identifies
an event only within its stream. Each step may be repeated: silver gets what it lacks, and gold counts each
touched minute again from all of silver, until silver has stood still meanwhile: of two runs at once, the one
that counted less may be the later one to write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as fn

from sea_mq_worker.pipeline.jobs import typed as typed_tables
from sea_mq_worker.pipeline.lake import GOLD, SILVER, ConflictError, Lake, repeated

_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_PLACE = ("published_at", "seq", "stream", "incarnation")
_SAME_ID = "t.message_id = s.message_id AND (s.within = '' OR t.stream = s.stream)"
_SAME_MINUTE = """
t.context <=> s.context AND t.event_type <=> s.event_type AND t.minute = s.minute AND t.date = s.date
"""
_UPDATE_GOLD = """
MERGE INTO {gold} AS t USING {{counted}} AS s ON {same} AND t.date IN ({dates})
WHEN MATCHED THEN UPDATE SET {columns}
WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})
"""
_PERCENTILES = (50, 95, 99)
OF_BATCH = ("stream", "incarnation", "seq", "time", "date", "message_id")
"""The columns of a batch that tell which rows of bronze it has, and which files of silver to compare."""


@dataclass(slots=True)
class Counts:
    """Numbers of rows that a run added, skipped or refused.

    Attributes:
        events: rows added to silver.
        repeats: further copies of an ID, which are in bronze alone.
        differing: repeats whose body, type or time of occurrence is not that of the first copy.
        typed: rows added to typed tables.
        violations: rows added to quarantine, because they violate their schema.
    """

    events: int = 0
    repeats: int = 0
    differing: int = 0
    typed: int = 0
    violations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The literals by which a batch's files of silver and gold are found; minutes are texts."""

    rows: int
    low: str
    high: str
    since: str
    until: str
    dates: Sequence[date]


def to_silver(bronze: DataFrame) -> DataFrame:
    """Return the rows of bronze that are events, with the columns of silver."""
    payload = fn.try_validate_utf8(fn.col("data").cast("string"))
    made = {
        "published_at": fn.col("time"),
        "payload": payload,
        "bytes": fn.octet_length("data").cast("bigint"),
    }
    columns = [made.get(name, fn.col(name)).alias(name) for name in SILVER.columns]
    return bronze.where("message_id IS NOT NULL").select(*columns)


def add_events(
    lake: Lake,
    batch: DataFrame,
    events: DataFrame,
    counts: Counts,
    *,
    dedupe_days: int | None,
    late_seconds: float,
    schemas: Sequence[typed_tables.EventSchema],
) -> None:
    """Add the events of a batch to silver, to gold and to typed tables.

    Args:
        lake: the lake, with all tables.
        batch: new rows of bronze; of their columns ``OF_BATCH`` are read, once.
        events: what ``to_silver`` makes of bronze. Each step reads the batch's rows of it, and only the
            columns that it needs, whereas each use of a streaming query's batch reads all its columns.
        counts: counts what was done.
        dedupe_days: search so many days before the batch for copies of an ID; None: all of silver.
        late_seconds: an event is late if it was stored more than this after it occurred.
        schemas: of the events that have typed tables.
    """
    parts = _parts(batch)
    if not parts:
        return
    bounds = _united(parts)
    rows = events.where(reduce(or_, map(_is_in, parts))).withColumn("within", _within())
    firsts = _without_repeats(rows)
    on = f"{_SAME_ID} AND t.message_id BETWEEN {{low}} AND {{high}}"
    if dedupe_days is not None:
        first = min(bounds.dates)
        on += f" AND t.date >= DATE'{first - min(timedelta(days=dedupe_days), first - date.min)}'"
    low, high = bounds.low, bounds.high
    added = repeated(lambda: lake.insert_new(SILVER.name, firsts, on, low=low, high=high))
    counts.events += added
    if added < bounds.rows:
        _count_repeats(lake, rows, bounds, counts)
    repeated(lambda: _refresh_gold(lake, bounds, late_seconds))
    if schemas:
        places = rows.select("stream", "incarnation", "seq")
        known = _of_minutes(lake, bounds).join(places, places.columns, "left_semi")
        typed, violations = repeated(lambda: typed_tables.refresh(lake, known, schemas))
        counts.typed += typed
        counts.violations += violations


def _parts(batch: DataFrame) -> list[Row]:
    """Return what the batch has of each incarnation of a stream."""
    bounds = (
        fn.count("*").alias("rows"),
        fn.min("seq").alias("first"),
        fn.max("seq").alias("last"),
        fn.min("message_id").alias("low"),
        fn.max("message_id").alias("high"),
        fn.date_trunc("minute", fn.min("time")).cast("string").alias("since"),
        fn.date_trunc("minute", fn.max("time")).cast("string").alias("until"),
        fn.collect_set("date").alias("dates"),
    )
    return batch.where("message_id IS NOT NULL").groupBy("stream", "incarnation").agg(*bounds).collect()


def _is_in(part: Row) -> Column:
    """Whether a row is one of a part of a batch, by literals that files' statistics answer."""
    same = [fn.col(name) == part[name] for name in ("stream", "incarnation")]
    return reduce(and_, same, fn.col("seq").between(part["first"], part["last"])) & fn.col("date").isin(
        part["dates"]
    )


def _united(parts: Sequence[Row]) -> _Bounds:
    return _Bounds(
        rows=sum(part["rows"] for part in parts),
        low=min(part["low"] for part in parts),
        high=max(part["high"] for part in parts),
        since=min(part["since"] for part in parts),
        until=max(part["until"] for part in parts),
        dates=sorted({day for part in parts for day in part["dates"]}),
    )


def _within() -> Column:
    """Return the stream within which a message's ID counts; empty: it counts everywhere."""
    return fn.when(fn.col("message_id").rlike(_UUID), "").otherwise(fn.col("stream"))


def _without_repeats(rows: DataFrame) -> DataFrame:
    """Return the first copy of each ID in the batch; only the repeated IDs are sent to all executors."""
    repeats = (
        rows.groupBy("message_id", "within")
        .agg(fn.count("*").alias("copies"), fn.min(fn.struct(*_PLACE)).alias("first"))
        .where("copies > 1")
    )
    joined = rows.join(fn.broadcast(repeats), ["message_id", "within"], "left")
    return joined.where(fn.col("first").isNull() | (fn.col("first") == fn.struct(*_PLACE))).select(
        *SILVER.columns, "within"
    )


def _count_repeats(lake: Lake, rows: DataFrame, bounds: _Bounds, counts: Counts) -> None:
    """Count the rows that silver has from another place, and those that differ from there."""
    near = fn.col("message_id").between(bounds.low, bounds.high)
    narrow = [fn.col(name).alias(f"first_{name}") for name in (*_PLACE, "date")]
    kept = lake.read(SILVER.name).where(near).withColumn("within", _within())
    found = (
        rows.select("message_id", "within", *_PLACE)
        .join(kept.select("message_id", "within", *narrow), ["message_id", "within"])
        .where(~_same(fn.col, lambda name: fn.col(f"first_{name}")))
        .agg(fn.count("*").alias("repeats"), fn.collect_set("first_date").alias("dates"))
    )
    [repeats] = found.collect()
    counts.repeats += repeats["repeats"]
    if repeats["repeats"]:
        content = fn.xxhash64("payload", "bytes", "event_type", "occurred_at").alias
        firsts = kept.where(fn.col("date").isin(repeats["dates"])).select(
            "message_id", "within", content("first_content")
        )
        differing = rows.select("message_id", "within", content("content")).join(
            firsts, ["message_id", "within"]
        )
        counts.differing += differing.where("content != first_content").count()


def _same(one: Any, other: Any) -> Column:
    return fn.struct(*map(one, _PLACE)) == fn.struct(*map(other, _PLACE))


def _of_minutes(lake: Lake, bounds: _Bounds) -> DataFrame:
    """Return silver's rows from the batch's first minute to its last, on the dates that it has rows of."""
    since, until = (fn.lit(text).cast("timestamp") for text in (bounds.since, bounds.until))
    published = fn.col("published_at")
    within = (published >= since) & (published < until + fn.expr("INTERVAL 1 MINUTE"))
    return lake.read(SILVER.name).where(fn.col("date").isin(bounds.dates) & within)


def _refresh_gold(lake: Lake, bounds: _Bounds, late_seconds: float) -> None:
    """Count the minutes of the batch again.

    Raises:
        ConflictError: another run has changed silver meanwhile, so gold may have an older count now.
    """
    before = _state(lake)
    minute = fn.date_trunc("minute", fn.col("published_at"))
    seconds = (fn.unix_micros("published_at") - fn.unix_micros("occurred_at")) / 1e6
    counted = (
        _of_minutes(lake, bounds)
        .select("context", "event_type", "date", "bytes", minute.alias("minute"), seconds.alias("seconds"))
        .groupBy("context", "event_type", "minute", "date")
        .agg(
            fn.count("*").alias("events"),
            fn.count_if(fn.col("seconds") > late_seconds).alias("late"),
            fn.sum("bytes").alias("bytes"),
            fn.sort_array(fn.collect_list("seconds")).alias("delays"),
        )
        .withColumns(
            {
                f"p{share}_seconds": fn.get(
                    "delays", (fn.ceil(fn.size("delays") * share / 100) - 1).cast("int")
                )
                for share in _PERCENTILES
            }
        )
        .drop("delays")
    )
    names = counted.columns
    merge = _UPDATE_GOLD.format(
        gold=lake.table(GOLD.name),
        same=_SAME_MINUTE,
        dates=", ".join(f"DATE'{date}'" for date in bounds.dates),
        columns=", ".join(f"{name} = s.{name}" for name in names),
        names=", ".join(names),
        values=", ".join(f"s.{name}" for name in names),
    )
    lake.spark.sql(merge, counted=counted)
    if _state(lake) != before:
        raise ConflictError("silver was changed while its events were counted")


def _state(lake: Lake) -> Row:
    """Return what each commit to silver changes."""
    detail = lake.spark.sql(f"DESCRIBE DETAIL {lake.table(SILVER.name)}")
    [state] = detail.select("id", "lastModified", "numFiles", "sizeInBytes").collect()
    return state
