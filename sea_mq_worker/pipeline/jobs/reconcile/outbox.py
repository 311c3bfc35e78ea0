"""The hop outbox -> stream: each row against the copies of it that the stream, or the lake for it, holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.order import order_conflicts, out_of_order
from sea_mq_worker.pipeline.jobs.reconcile.replays import Replay, unexplained
from sea_mq_worker.pipeline.jobs.reconcile.verdict_columns import case, findings
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict

_CLOCK_SECONDS = 60
"""How far the clocks of database and broker may be apart where a row might belong to an older stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvidence:
    """What the stream may hold.

    Attributes:
        stream: its name.
        created: when it was created.
        first_seq: the first message that it held when all had been read.
        last_seq: the last one when the reading began.
        first_time: when the first one was stored; None: it is empty.
        asked_at: the database's clock before ``last_seq`` was asked for; what was acknowledged earlier is in.
        max_age_seconds: after which it drops messages; None: never.
        drops: it may drop messages for other reasons than their age.
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
    """What the operator chose.

    Attributes:
        grace_seconds: what was published or stored less long ago is never called missing.
        late_seconds: above which a hop is late; None: never.
        since: compare only events created (own) or stored (others') at this time or later.
        until: compare only those before this time.
    """

    grace_seconds: float = 60.0
    late_seconds: float | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def windowed(self) -> bool:
        """Only a part is compared."""
        return self.since is not None or self.until is not None


def copies_by_id(messages: DataFrame) -> DataFrame:
    """Return each ``id`` with its ``copies``, the first one first."""
    copy = F.struct("place", "seq", "time", "subject", "content", "marks")
    return messages.groupBy("id").agg(F.sort_array(F.collect_list(copy)).alias("copies"))


def matched(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Join rows and copies; either side may be missing."""
    return events.join(copies_by_id(messages), "id", "full_outer")


def judge_stream(
    joined: DataFrame,
    facts: StreamEvidence,
    limits: Limits,
    *,
    replays: Sequence[Replay] = (),
    pruned_before: datetime | None = None,
) -> DataFrame:
    """Add ``state_verdict``, ``findings`` and ``seconds`` (from occurred to stored).

    ``state_verdict`` is the one of the findings that exclude each other.

    Args:
        joined: from ``matched``; read several times, here already, so it should be persisted.
        facts: of the stream.
        limits: of the run.
        replays: audited ones, which explain further copies.
        pruned_before: rows published before this time may have been deleted; None: none were.
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
        # It was acknowledged after the last sequence was asked for, so nobody looked where it is.
        (F.col("published_at") >= young, Verdict.PENDING),
        (_expired(facts), Verdict.EXPIRED),
        otherwise=Verdict.MISSING_IN_STREAM,
    )


def _expired(facts: StreamEvidence) -> Column:
    """Retention may have removed it.

    A stream that refuses messages when it is full drops none but the old ones: a younger one that is gone was
    removed by somebody, even at the stream's head.
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
    """No row, or one that makes no message: there is nothing to compare."""
    differs = F.exists(
        "copies", lambda copy: (copy["content"] != F.col("content")) | (copy["marks"] != F.col("marks"))
    )
    return F.col("content").isNotNull() & F.coalesce(differs, F.lit(False))


def _repeated(joined: DataFrame, replays: Sequence[Replay]) -> DataFrame | None:
    """Return the ids with a copy that no replay explains; None: there is no second copy of any."""
    several = joined.where(F.size("copies") > 1)
    if several.isEmpty():
        return None
    pairs = F.transform(
        F.sequence(F.lit(2), F.size("copies")),
        lambda place: F.struct(
            F.element_at("copies", place - 1)["time"].alias("earlier"),
            F.element_at("copies", place)["time"].alias("later"),
        ),
    )
    each = several.select(*_SELECTED, F.inline(pairs))
    return unexplained(each, replays)


def _displaced(joined: DataFrame, replays: Sequence[Replay]) -> DataFrame | None:
    """Return the ids out of order, by their first copies; None: all are in order.

    An event whose first copy left the stream long ago, so that a replay's is the first seen, is left out.
    """
    first = F.element_at("copies", 1)
    keyed = joined.where(F.col("ordering_key").isNotNull() & F.col("copies").isNotNull())
    places = keyed.select(
        *_SELECTED,
        "seq",
        first["place"].alias("place"),
        F.col("created_at").alias("earlier"),
        first["time"].alias("later"),
    )
    wrong = order_conflicts(places)
    return None if wrong.isEmpty() else out_of_order(unexplained(wrong, replays))


_SELECTED = ("id", "event_type", "ordering_key", "correlation_id", "created_at")


def _flagged(joined: DataFrame, ids: DataFrame | None, name: str) -> DataFrame:
    if ids is None:
        return joined.withColumn(name, F.lit(False))
    return joined.join(ids.select("id").distinct().withColumn(name, F.lit(True)), "id", "left")
