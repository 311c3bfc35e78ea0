"""Aggregates of events, messages and dead letters; each returns at most some thousand rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.jobs.report.model import (
    AGES,
    Attempts,
    BacklogCount,
    Dead,
    DeadLetterBin,
    DeadLetters,
    LatencyFigures,
    Share,
    Shares,
    StreamBin,
    Way,
)

LARGEST = 20
_GROUPS_MAX = 200
_REASONS_MAX = 12
_ATTEMPTS_MAX = 20
"""Cap on the attempts shown: events with more attempts count as having this number."""
_TEXT_MAX = 200
_BINS_MAX = 240
_STEPS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400)
_AGE_LIMITS = (60, 600, 3600, 86_400)
_PERCENTILES = [0.5, 0.95, 0.99]


@dataclass(frozen=True, slots=True)
class Period:
    """A period, ``until`` not included, divided into bins."""

    since: datetime
    until: datetime
    step: int

    @classmethod
    def of(cls, since: datetime, until: datetime) -> "Period":
        """Choose the shortest common bin length that gives at most 240 bins."""
        span = max(1.0, (until - since).total_seconds())
        fitting = (step for step in _STEPS if span / step <= _BINS_MAX)
        return cls(since, until, next(fitting, 86_400 * (1 + int(span / 86_400 / _BINS_MAX))))

    def contains(self, column: str) -> Column:
        """Return whether a time is in the period."""
        return (F.col(column) >= F.lit(self.since)) & (F.col(column) < F.lit(self.until))

    def bin(self, column: str) -> Column:
        """Return the begin of a time's bin, in seconds since 1970."""
        return (F.floor(F.unix_seconds(F.col(column)) / self.step) * self.step).cast("bigint")

    def begins(self) -> Iterator[datetime]:
        """Yield the begins of all bins, in UTC."""
        second = int(self.since.timestamp()) // self.step * self.step
        while second < self.until.timestamp():
            yield moment(second)
            second += self.step


def moment(second: float) -> datetime:
    """Return the time of this number of seconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def seconds_between(begin: str, end: str) -> Column:
    """Return a duration; 0 if it is negative, because two machines' clocks differ."""
    micros = F.unix_micros(F.col(end)) - F.unix_micros(F.col(begin))
    return F.greatest(micros / F.lit(1e6), F.lit(0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Counts of one bin; ``retried``: after more than one attempt."""

    count: int = 0
    retried: int = 0
    size: int = 0
    dead: int = 0
    archived: int = 0


def moments(frame: DataFrame, times: Mapping[str, str], **measures: Column) -> DataFrame:
    """Return a row for each of a row's times: what happened, when, and the measures to count."""
    pairs = [F.struct(F.lit(what).alias("what"), F.col(time)) for what, time in times.items()]
    pair = F.explode(F.array(*(each.cast("struct<what: string, time: timestamp>") for each in pairs)))
    given = [column.alias(name) for name, column in measures.items()]
    return frame.select(pair.alias("moment"), "attempts", *given).select("moment.*", "attempts", *measures)


def counts(moments: DataFrame, period: Period) -> dict[tuple[str, datetime], Count]:
    """Count what happened (what, time, attempts, size, dead, archived) by kind and bin."""
    inside = moments.where(period.contains("time")).groupBy("what", period.bin("time").alias("bin"))
    found = inside.agg(
        F.count("*").alias("count"),
        F.count_if(F.col("attempts") > 1).alias("retried"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("size"),
        F.count_if("dead").alias("dead"),
        F.count_if("archived").alias("archived"),
    )
    names = [field.name for field in fields(Count)]
    return {
        (row["what"], moment(row["bin"])): Count(**{name: row[name] for name in names})
        for row in found.collect()
    }


def ended(frame: DataFrame, way: Way, begin: str, end: str) -> DataFrame:
    """Return finished rows: way, end, duration in seconds, and attempts."""
    return frame.where(F.col(end).isNotNull()).select(
        F.lit(way).alias("way"),
        F.col(end).alias("end"),
        seconds_between(begin, end).alias("seconds"),
        "attempts",
    )


def latencies(ended: DataFrame, period: Period) -> list[LatencyFigures]:
    """Return percentiles for each way: by bin of the end, and for the whole period."""
    timed = ended.where(period.contains("end")).withColumn("bin", period.bin("end"))
    measures = (
        F.count("*").alias("count"),
        F.percentile_approx("seconds", _PERCENTILES, 10_000).alias("percentiles"),
        F.max("seconds").alias("longest"),
    )
    way, bin_ = F.col("way"), F.col("bin")
    grouped = timed.groupingSets([(way, bin_), (way,)], way, bin_).agg(*measures)
    return [
        LatencyFigures(
            way=row["way"],
            at=None if row["bin"] is None else moment(row["bin"]),
            count=row["count"],
            **dict(zip(("p50", "p95", "p99"), row["percentiles"], strict=True)),
            longest=row["longest"],
        )
        for row in grouped.orderBy(F.desc("way"), "bin").collect()
    ]


def attempts(ended: DataFrame, period: Period) -> list[Attempts]:
    """Count the rows that ended in the period, by way and attempts."""
    number = F.least("attempts", F.lit(_ATTEMPTS_MAX)).alias("attempts")
    grouped = ended.where(period.contains("end")).groupBy("way", number).count()
    rows = grouped.orderBy(F.desc("way"), "attempts").collect()
    return [Attempts(way=row["way"], attempts=row["attempts"], count=row["count"]) for row in rows]


def shares(frame: DataFrame, period: Period, column: str) -> Shares:
    """Return the values of a column with the most events written in the period."""
    written = frame.where(period.contains("created_at") & F.col(column).isNotNull())
    grouped = written.groupBy(column).agg(F.count("*").alias("count"), F.sum("size").alias("size"))
    rows = grouped.orderBy(F.desc("count"), F.desc("size"), column).limit(LARGEST).collect()
    return Shares(
        largest=[Share(name=row[column][:_TEXT_MAX], count=row["count"], size=row["size"]) for row in rows],
        distinct=grouped.count() if len(rows) == LARGEST else len(rows),
    )


def dead_events(frame: DataFrame, period: Period) -> list[Dead]:
    """Count DEAD events by the beginning of their error; in the worker's errors this is a code."""
    reason = F.left(
        F.substring_index(F.coalesce("publish_error", F.lit("no error recorded")), ":", 1), F.lit(80)
    )
    rows = (
        frame.where(period.contains("created_at") & (F.col("state") == "DEAD"))
        .groupBy(reason.alias("reason"), "event_type")
        .count()
        .orderBy(F.desc("count"), "reason", "event_type")
        .limit(_GROUPS_MAX)
        .collect()
    )
    return [
        Dead(reason=row["reason"], event_type=row["event_type"][:_TEXT_MAX], count=row["count"])
        for row in rows
    ]


def dead_letters(letters: DataFrame, period: Period) -> tuple[list[DeadLetters], list[DeadLetterBin], int]:
    """Return the period's dead letters by reason and subject, by reason and bin, and their number."""
    inside = letters.where(period.contains("time"))
    rows = (
        inside.groupBy("reason", "subject")
        .agg(F.count("*").alias("count"), F.max(F.unix_seconds("time")).alias("latest"))
        .orderBy(F.desc("count"), "reason", "subject")
        .limit(_GROUPS_MAX)
        .collect()
    )
    groups = [
        DeadLetters(
            reason=row["reason"],
            subject=row["subject"][:_TEXT_MAX],
            count=row["count"],
            latest=moment(row["latest"]),
        )
        for row in rows
    ]
    by_reason = inside.groupBy("reason").count().orderBy(F.desc("count"), "reason").collect()
    most = [row["reason"] for row in by_reason[:_REASONS_MAX]]
    shown = F.when(F.col("reason").isin(most), F.col("reason")).otherwise("others")
    bins = inside.groupBy(period.bin("time").alias("bin"), shown.alias("shown")).count().collect()
    over_time = [
        DeadLetterBin(at=moment(row["bin"]), reason=row["shown"], count=row["count"])
        for row in sorted(bins, key=lambda row: (row["bin"], row["shown"]))
    ]
    return groups, over_time, sum(row["count"] for row in by_reason)


def backlog(waiting: DataFrame, at: datetime) -> list[BacklogCount]:
    """Count rows (way, state, begin) by state and age at this time."""
    age = F.greatest(F.unix_seconds(F.lit(at)) - F.unix_seconds("begin"), F.lit(0))
    label = F.lit(AGES[-1])
    for limit, name in reversed(list(zip(_AGE_LIMITS, AGES, strict=False))):
        label = F.when(age < limit, name).otherwise(label)
    rows = (
        waiting.groupBy("way", "state", label.alias("age"))
        .agg(F.count("*").alias("count"), F.max(age).alias("oldest"))
        .collect()
    )
    found = [
        BacklogCount(
            way=row["way"],
            state=row["state"],
            age=row["age"],
            count=row["count"],
            oldest_seconds=float(row["oldest"]),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.way != "outbox", one.state, AGES.index(one.age)))


def stream_bins(gold: DataFrame, period: Period) -> list[StreamBin]:
    """Count gold's events by bin, at least a minute long; minutes at the ends of the period count whole."""
    whole = replace(
        period, since=period.since - timedelta(seconds=59, microseconds=999_999), step=max(60, period.step)
    )
    rows = (
        gold.where(whole.contains("minute"))
        .groupBy(whole.bin("minute").alias("bin"), "context")
        .agg(F.sum("events").alias("count"))
        .orderBy("bin", "context")
        .collect()
    )
    return [StreamBin(at=moment(row["bin"]), context=row["context"], count=row["count"]) for row in rows]


def first_moment(frames: Sequence[tuple[DataFrame, str]], before: datetime) -> datetime | None:
    """Return the earliest time in these columns before ``before``; None if there is none."""
    times = reduce(
        DataFrame.unionAll, [frame.select(F.col(column).alias("time")) for frame, column in frames]
    )
    earlier = times.where(F.col("time") < F.lit(before))
    (row,) = earlier.agg(F.min(F.unix_seconds("time")).alias("first")).collect()
    return None if row["first"] is None else moment(row["first"])
