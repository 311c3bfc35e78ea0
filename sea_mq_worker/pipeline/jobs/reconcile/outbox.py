"""Judge the hop outbox -> stream: compare each row with its copies in the stream and in the lake."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.order import order_conflicts, out_of_order
from sea_mq_worker.pipeline.jobs.reconcile.replays import AuditedReplay, unexplained
from sea_mq_worker.pipeline.jobs.reconcile.verdict_columns import case, findings
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict

_CLOCK_SECONDS = 60
"""Tolerance between the clocks of database and broker, for deciding if a row belongs to an older stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvidence:
    """Bounds and retention of the stream at the time of the read.

    Attributes:
        stream: the stream's name.
        created: the stream's creation time.
        first_seq: the first message after the read.
        last_seq: the last message before the read.
        first_time: storage time of the first message; None: the stream is empty.
        asked_at: the database's time before ``last_seq`` was queried; it covers events acknowledged earlier.
        max_age_seconds: age at which the stream removes messages; None: never.
        drops: whether the stream may remove messages for other reasons than age.
    """

    stream: str
    created: datetime
    first_seq: int
    last_seq: int
    first_time: datetime | None
    asked_at: datetime
    max_age_seconds: float | None = None
    drops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of time, chosen by the operator.

    Attributes:
        grace_seconds: events published or stored within this time are never missing.
        late_seconds: a hop is late above this time; None: never.
        since: compare only own events created, and other messages stored, at this time or later.
        until: compare only own events created, and other messages stored, before this time.
    """

    grace_seconds: float = 60.0
    late_seconds: float | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def windowed(self) -> bool:
        """Whether only a part is compared."""
        return self.since is not None or self.until is not None


def copies_by_id(messages: DataFrame) -> DataFrame:
    """Return each ``id`` with its ``copies`` in stream order."""
    copy = F.struct("position", "seq", "time", "subject", "content", "header_hash")
    return messages.groupBy("id").agg(F.sort_array(F.collect_list(copy)).alias("copies"))


def matched(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Join rows and copies with a full outer join."""
    return events.join(copies_by_id(messages), "id", "full_outer")


def judge_stream(
    joined: DataFrame,
    facts: StreamEvidence,
    limits: Limits,
    *,
    replays: Sequence[AuditedReplay] = (),
    pruned_before: datetime | None = None,
) -> DataFrame:
    """Add ``state_verdict``, ``findings`` and ``seconds`` (from occurred to stored).

    ``state_verdict`` is one of the mutually exclusive findings.

    Args:
        joined: the result of ``matched``; read several times, so it should be persisted.
        facts: bounds and retention of the stream.
        limits: the limits of the run.
        replays: audited replays, which explain additional copies.
        pruned_before: rows published before this time may have been pruned; None: no prune.
    """
    first = F.element_at("copies", 1)
    marked = _flagged(joined, _repeated(joined, replays), "repeated")
    marked = _flagged(marked, _displaced(joined, replays), "displaced")
    if limits.windowed:
        marked = marked.where(F.col("state").isNotNull())
    seconds = first["time"].cast("double") - F.col("occurred_at").cast("double")
    judged = marked.withColumn("state_verdict", _state(facts, limits, pruned_before))
    judged = judged.withColumn("seconds", seconds)
    further = {
        Verdict.ALTERED: _altered(),
        Verdict.DUPLICATED: F.col("repeated"),
        Verdict.OUT_OF_ORDER: F.col("displaced"),
        Verdict.LATE: F.lit(False) if limits.late_seconds is None else F.col("seconds") > limits.late_seconds,
    }
    return judged.withColumn("findings", findings(F.col("state_verdict"), further))


def _state(facts: StreamEvidence, limits: Limits, pruned_before: datetime | None) -> Column:
    unknown = F.col("state").isNull()
    pruned = F.lit(False)
    if pruned_before is not None:
        pruned = F.element_at("copies", 1)["time"] < F.lit(pruned_before)
    young = F.lit(facts.asked_at - timedelta(seconds=limits.grace_seconds))
    return case(
        (unknown & pruned, Verdict.PRUNED),
        (unknown, Verdict.UNEXPECTED),
        (F.col("state").isin("PENDING", "CLAIMED"), Verdict.PENDING),
        (F.col("state") == "DEAD", Verdict.DEAD),
        (F.col("copies").isNotNull(), Verdict.DELIVERED),
        # The event was acknowledged after the last sequence was queried, so its message was not read.
        (F.col("published_at") >= young, Verdict.PENDING),
        (_expired(facts), Verdict.EXPIRED),
        otherwise=Verdict.MISSING_IN_STREAM,
    )


def _expired(facts: StreamEvidence) -> Column:
    """Whether retention may have removed the message.

    A stream that refuses messages when it is full removes only messages above the maximum age. A younger
    missing message was removed by an operator, even at the stream's head.
    """
    elsewhere = F.coalesce(F.col("stream") != facts.stream, F.lit(False))
    old = F.lit(False)
    if facts.max_age_seconds is not None:
        old = F.col("published_at") < F.lit(facts.asked_at - timedelta(seconds=facts.max_age_seconds))
    if not facts.drops:
        return elsewhere | old
    same = F.col("published_at") >= F.lit(facts.created - timedelta(seconds=_CLOCK_SECONDS))
    before_first = F.col("stream_seq") < facts.first_seq
    if facts.first_time is not None:
        unsaid = F.col("stream_seq").isNull() & (F.col("published_at") < F.lit(facts.first_time))
        before_first = F.coalesce(before_first, F.lit(False)) | unsaid
    return elsewhere | old | (same & before_first)


def _altered() -> Column:
    """Whether a copy differs from its row; a row that makes no message is not compared."""
    differs = F.exists(
        "copies",
        lambda copy: (copy["content"] != F.col("content")) | (copy["header_hash"] != F.col("header_hash")),
    )
    return F.col("content").isNotNull() & F.coalesce(differs, F.lit(False))


def _repeated(joined: DataFrame, replays: Sequence[AuditedReplay]) -> DataFrame | None:
    """Return the IDs with a copy that no replay explains; None: no ID has a second copy."""
    several = joined.where(F.size("copies") > 1)
    if several.isEmpty():
        return None
    pairs = F.transform(
        F.sequence(F.lit(2), F.size("copies")),
        lambda position: F.struct(
            F.element_at("copies", position - 1)["time"].alias("earlier"),
            F.element_at("copies", position)["time"].alias("later"),
        ),
    )
    each = several.select(*_SELECTED, F.inline(pairs))
    return unexplained(each, replays)


def _displaced(joined: DataFrame, replays: Sequence[AuditedReplay]) -> DataFrame | None:
    """Return the IDs that are out of order by their first copies; None: all are in order.

    Events whose first copy has left the stream, so that a replay's copy is the first one, are left out.
    """
    first = F.element_at("copies", 1)
    keyed = joined.where(F.col("ordering_key").isNotNull() & F.col("copies").isNotNull())
    positions = keyed.select(
        *_SELECTED,
        "seq",
        first["position"].alias("position"),
        F.col("created_at").alias("earlier"),
        first["time"].alias("later"),
    )
    wrong = order_conflicts(positions)
    return None if wrong.isEmpty() else out_of_order(unexplained(wrong, replays))


_SELECTED = ("id", "event_type", "ordering_key", "correlation_id", "created_at")


def _flagged(joined: DataFrame, ids: DataFrame | None, name: str) -> DataFrame:
    if ids is None:
        return joined.withColumn(name, F.lit(False))
    return joined.join(ids.select("id").distinct().withColumn(name, F.lit(True)), "id", "left")
