"""Update silver from bronze: typed columns, one row per message ID.

A duplicate is a message whose ID was landed before, from any stream and at any time. The copy landed first is
kept; within a batch, the one with the lowest sequence. Later copies exist only in bronze. The ID is
Nats-Msg-Id, else ce-id, else derived from the place and time of storage, which a restore preserves.
"""

from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.dataframes import deduplicate_by
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.lake.table import Conditions, ConflictError, LakeTable, Watermark
from sea_mq_worker.pipeline.session import described

SERIAL = "commits"
"""Watermark that every commit increments. A commit depends on all rows of the table, so of two concurrent
commits one must fail."""

_ATTEMPTS = 5
_SUBJECT = r"^([a-z0-9][a-z0-9_-]*)\.event\.(.+)\.v([1-9][0-9]{0,9})$"
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_MOMENT = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:?\d{2})$"


def update(
    spark: SparkSession,
    bronze: LakeTable,
    silver: LakeTable,
    progress: StreamProgress,
    *,
    rows_max: int,
    dedupe_days: int | None,
) -> int:
    """Update silver to the progress of bronze; return the number of new rows.

    Args:
        spark: the session.
        bronze: the source table.
        silver: the target table.
        progress: the incarnation of the stream and its progress in bronze.
        rows_max: sequences per commit.
        dedupe_days: search copies up to this many days before a batch's first message; None: no limit.
    """
    added = conflicts = 0
    while (taken := silver.watermark(progress.name) or 0) < progress.landed:
        serial = silver.watermark(SERIAL) or 0
        one_step = taken or progress.landed <= rows_max
        start = taken if one_step else _first(spark, bronze, progress) - 1
        upto = min(progress.landed, start + rows_max)
        new = deduplicate_by(to_silver(_landed(spark, bronze, progress, start, upto)), "message_id", "seq")
        with described(spark, f"land {progress.stream} {start + 1}-{upto}: silver"):
            files = silver.write(_unknown(spark, silver, new, dedupe_days))
        watermarks = Watermark(progress.name, upto, after=taken), Watermark(SERIAL, serial + 1, after=serial)
        try:
            added += files.rows if silver.commit(files, *watermarks) else 0
        except ConflictError:
            conflicts += 1
            if conflicts == _ATTEMPTS:
                raise
    return added


def to_silver(bronze: DataFrame) -> DataFrame:
    """Return typed columns; header names are case-insensitive, and the first of repeated headers counts."""
    lowered = F.transform("headers", lambda h: F.struct(F.lower(h["key"]), h["value"]))
    # map_from_entries keeps the last of equal keys, so reverse the headers.
    given = bronze.withColumn("given", F.map_from_entries(F.reverse(lowered)))
    return given.select(
        _message_id().alias("message_id"),
        F.coalesce(_of_subject(2), _ce("type")).alias("event_type"),
        F.coalesce(_of_subject(3).try_cast("int"), _ce("eventversion").try_cast("int")).alias(
            "event_version"
        ),
        "subject",
        _ce("source").alias("source"),
        _ce("subject").alias("aggregate"),
        _moment(_ce("time")).alias("occurred_at"),
        F.col("time").alias("published_at"),
        _ce("correlationid").alias("correlation_id"),
        _ce("causationid").alias("causation_id"),
        _ce("partitionkey").alias("partition_key"),
        F.try_validate_utf8(F.col("data").cast("string")).alias("payload"),
        F.octet_length("data").cast("bigint").alias("bytes"),
        "stream",
        "incarnation",
        "seq",
        _of_subject(1).alias("context"),
        F.to_date("time").alias("date"),
    )


def _landed(
    spark: SparkSession, bronze: LakeTable, progress: StreamProgress, after: int, upto: int
) -> DataFrame:
    conditions: Conditions = [
        ("stream", "=", progress.stream),
        ("incarnation", "=", progress.incarnation),
        ("seq", ">", after),
        ("seq", "<=", upto),
    ]
    mine = (F.col("stream") == progress.stream) & (F.col("incarnation") == progress.incarnation)
    return bronze.read(spark, conditions).where(mine & (F.col("seq") > after) & (F.col("seq") <= upto))


def _first(spark: SparkSession, bronze: LakeTable, progress: StreamProgress) -> int:
    """Return the first landed sequence; without rows, the sequence after the last landed one."""
    row = _landed(spark, bronze, progress, 0, progress.landed).agg(F.min("seq")).first()
    return progress.landed + 1 if row is None or row[0] is None else int(row[0])


def _unknown(spark: SparkSession, silver: LakeTable, new: DataFrame, days: int | None) -> DataFrame:
    """Remove the IDs that silver already contains; skip files outside the range of these IDs."""
    if silver.open() is None:
        return new
    ends = new.agg(F.min("message_id"), F.max("message_id"), F.min("date")).first()
    if ends is None or ends[0] is None:
        return new
    conditions = [("message_id", ">=", ends[0]), ("message_id", "<=", ends[1])]
    if days is not None:
        conditions.append(("date", ">=", ends[2] - timedelta(days=days)))
    known = silver.read(spark, conditions, columns=["message_id"])
    return new.join(known, "message_id", "left_anti")


def _message_id() -> Column:
    header = F.coalesce(F.nullif(F.col("given")["nats-msg-id"], F.lit("")), F.nullif(_ce("id"), F.lit("")))
    moment = F.date_format("time", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    stored = F.concat(F.col("stream"), F.lit("/"), F.col("seq"), F.lit("@"), moment)
    # Normalize UUIDs in the same way as the worker.
    return F.coalesce(F.when(header.rlike(_UUID), F.lower(header)).otherwise(header), stored)


def _ce(name: str) -> Column:
    """Return a CloudEvents attribute, percent-decoded if its encoding is valid."""
    value = F.col("given")[f"ce-{name}"]
    # url_decode would decode a plus sign as a space.
    return F.coalesce(F.try_url_decode(F.replace(value, F.lit("+"), F.lit("%2B"))), value)


def _of_subject(group: int) -> Column:
    return F.nullif(F.regexp_extract("subject", _SUBJECT, group), F.lit(""))


def _moment(text: Column) -> Column:
    """Parse RFC 3339; null if the text is something else or has no offset."""
    upper = F.upper(text)
    return F.when(text.rlike(_MOMENT), upper.try_cast("timestamp"))
