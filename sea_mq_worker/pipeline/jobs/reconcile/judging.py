"""Judge each ID at each hop: outbox to stream, and stream to the inbox of each consumer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.audit import AuditedReplay, unexplained
from sea_mq_worker.pipeline.jobs.reconcile.broker import ConsumerPosition
from sea_mq_worker.pipeline.jobs.reconcile.order import order_conflicts, out_of_order
from sea_mq_worker.pipeline.jobs.reconcile.request import ReconcileRequest
from sea_mq_worker.pipeline.jobs.reconcile.sources import INBOX_COLUMNS, Inbox, Stream
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict

_CLOCK_SECONDS = 60
"""Tolerance between the clocks of database and broker, for deciding if a row belongs to an older stream."""

_COPY = ("position", "stream", "seq", "time", "subject", "content", "header_hash")
_CARRIED = (Verdict.MISSING_IN_STREAM, Verdict.PENDING, Verdict.DEAD, Verdict.EXPIRED)
"""Verdicts of an event without a copy that the next hop repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxHop:
    """The hop from the outbox to the stream.

    Attributes:
        asked_at: the database's time before the stream's last sequence was queried; it covers events
            acknowledged earlier.
        pruned_before: rows published before this time may have been pruned; None: no prune.
        replays: audited replays, which explain additional copies.
    """

    stream: Stream
    asked_at: datetime
    pruned_before: datetime | None = None
    replays: Sequence[AuditedReplay] = ()

    @property
    def name(self) -> str:
        """Source and target of the hop."""
        return f"outbox -> {self.stream.compared.stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxHop:
    """The hop from a stream to the inbox of a consumer's service.

    Attributes:
        inbox: the inbox.
        number: the inbox's place among the compared inboxes.
        position: range and progress of the consumer.
        stream: the consumer's stream.
    """

    inbox: Inbox
    number: int
    position: ConsumerPosition
    stream: Stream

    @property
    def name(self) -> str:
        """Source and target of the hop."""
        return f"{self.position.stream} -> {self.inbox.context} {self.position.durable}"


def by_id(events: DataFrame, streams: Sequence[Stream], inboxes: Sequence[DataFrame]) -> DataFrame:
    """Return one row per ID: the columns of its event, its ``copies`` in order, and its row of each inbox.

    Of events with one ID the table's is used, else the one published last. ``inbox0`` is the row of the first
    inbox, and so on. An ID that only an inbox has is left out.
    """
    messages = (each.messages.withColumn("stream", F.lit(each.compared.stream)) for each in streams)
    kinds = [
        events.select("id", F.struct(*(name for name in events.columns if name != "id")).alias("event")),
        *(rows.select("id", F.struct(*_COPY).alias("copy")) for rows in messages),
        *(
            rows.select("id", F.struct(*INBOX_COLUMNS).alias(f"inbox{number}"))
            for number, rows in enumerate(inboxes)
        ),
    ]
    rows = reduce(lambda all_, kind: all_.unionByName(kind, allowMissingColumns=True), kinds)
    received = [F.first(f"inbox{number}", ignorenulls=True) for number in range(len(inboxes))]
    grouped = rows.groupBy("id").agg(
        F.max_by("event", F.struct("event.in_table", "event.published_at")).alias("event"),
        # A message that left the stream during the read may come from the lake, too.
        F.array_distinct(F.sort_array(F.collect_list("copy"))).alias("copies"),
        *(column.alias(f"inbox{number}") for number, column in enumerate(received)),
    )
    found = grouped.where(F.col("event").isNotNull() | (F.size("copies") > 0))
    return found.select("*", "event.*").drop("event")


def judge(
    rows: DataFrame, outbox: OutboxHop, inboxes: Sequence[InboxHop], wanted: ReconcileRequest
) -> DataFrame:
    """Judge the rows of ``by_id``, except for the findings of ``further_findings``.

    Add ``times`` of the copies in the own stream, ``position`` of the first one, and ``hops``: ``hop``,
    ``findings`` and ``seconds`` (from occurrence to stream, or from stream to effect) of each hop that the ID
    belongs to.
    """
    name = outbox.stream.compared.stream
    judged = rows.withColumn("own", F.filter("copies", lambda copy: copy["stream"] == name))
    judged = judged.withColumn("verdict", _outbox_verdict(outbox, wanted))
    first = F.try_element_at("own", F.lit(1))
    took = _seconds(F.col("occurred_at"), first["time"])
    # Only a part of the events is read for a part of the time, so other IDs of the stream cannot be judged.
    is_judged = F.col("state").isNotNull() if wanted.since or wanted.until else F.lit(True)
    is_own = is_judged & (F.col("state").isNotNull() | (F.size("own") > 0))
    hops = [F.when(is_own, _hop(outbox.name, "verdict", took, _is_altered(), wanted))]
    for number, hop in enumerate(inboxes):
        judged = judged.withColumn("covered", _covered(hop))
        judged = judged.withColumn("received", F.col(f"inbox{hop.number}"))
        judged = judged.withColumn("inbox_verdict", _inbox_verdict(hop, wanted))
        is_expected = F.size("covered") > 0
        if hop.position.stream == name:
            at = F.coalesce("published_at", "created_at")
            is_expected |= (F.size("own") == 0) & _covers(
                hop.position, F.col("sent_as"), F.col("stream_seq"), at
            )
            is_expected &= is_judged
        judged = judged.withColumn(f"hop{number}", F.when(is_expected, _inbox_hop(hop, wanted)))
        hops.append(F.col(f"hop{number}"))
    return judged.select(
        *("id", "event_type", "ordering_key", "correlation_id", "created_at", "seq"),
        *("in_table", "published_at", "stream", "stream_seq"),
        F.transform("own", lambda copy: copy["time"]).alias("times"),
        first["position"].alias("position"),
        F.array_compact(F.array(*hops)).alias("hops"),
    )


def further_findings(judged: DataFrame, replays: Sequence[AuditedReplay]) -> DataFrame:
    """Return ``id`` and ``further``: findings on copies of several events or of several copies.

    An event whose first copy has left the stream, so that a replay's copy is the first one, is in order.
    """
    copies = judged.where(F.size("times") > 1).select(
        *_SELECTED,
        F.inline(
            F.zip_with(
                F.slice("times", 1, F.size("times") - 1),
                F.slice("times", 2, F.size("times") - 1),
                lambda earlier, later: F.struct(earlier.alias("earlier"), later.alias("later")),
            )
        ),
    )
    first = F.try_element_at("times", F.lit(1))
    keyed = judged.where(F.col("ordering_key").isNotNull() & F.col("position").isNotNull())
    positions = keyed.select(
        *_SELECTED, "seq", "position", F.col("created_at").alias("earlier"), first.alias("later")
    )
    repeated = unexplained(copies, replays).select("id", F.lit(Verdict.DUPLICATED.value).alias("finding"))
    moved = out_of_order(unexplained(order_conflicts(positions), replays))
    both = repeated.unionByName(moved.withColumn("finding", F.lit(Verdict.OUT_OF_ORDER.value)))
    return both.groupBy("id").agg(F.collect_set("finding").alias("further"))


def with_findings(hops: DataFrame, further: DataFrame, hop: str) -> DataFrame:
    """Add further findings to one hop; ``findings`` stay sorted, worst first."""
    joined = hops.join(further.withColumn("hop", F.lit(hop)), ["id", "hop"], "left")
    by_severity = F.array(*(F.lit(verdict.value) for verdict in Verdict))
    all_ = F.array_intersect(by_severity, F.array_union("findings", "further"))
    found = F.array_remove(all_, Verdict.DELIVERED.value)
    return joined.withColumn("findings", F.coalesce(found, "findings")).drop("further")


_SELECTED = ("id", "event_type", "ordering_key", "correlation_id", "created_at")


def _outbox_verdict(hop: OutboxHop, wanted: ReconcileRequest) -> Column:
    unknown = F.col("state").isNull()
    first = F.try_element_at("own", F.lit(1))
    young = F.lit(hop.asked_at - timedelta(seconds=wanted.grace_seconds))
    return _case(
        (unknown & _is_before(first["time"], hop.pruned_before), Verdict.PRUNED),
        (unknown, Verdict.UNEXPECTED),
        (F.col("state").isin("PENDING", "CLAIMED"), Verdict.PENDING),
        (F.col("state") == "DEAD", Verdict.DEAD),
        (F.size("own") > 0, Verdict.DELIVERED),
        # The event was acknowledged after the last sequence was queried, so its message was not read.
        (F.col("published_at") >= young, Verdict.PENDING),
        (_is_expired(hop), Verdict.EXPIRED),
        otherwise=Verdict.MISSING_IN_STREAM,
    )


def _is_expired(hop: OutboxHop) -> Column:
    """Whether retention may have removed the message.

    A stream that refuses messages when it is full removes only messages above the maximum age. A younger
    missing message was removed by an operator, even at the stream's head.
    """
    stream, bounds = hop.stream, hop.stream.compared
    expired = F.coalesce(F.col("stream") != bounds.stream, F.lit(False))
    if stream.max_age_seconds:
        expired |= _is_before("published_at", hop.asked_at - timedelta(seconds=stream.max_age_seconds))
    if not stream.drops:
        return expired
    created = datetime.fromisoformat(bounds.created) - timedelta(seconds=_CLOCK_SECONDS)
    unsaid = F.col("stream_seq").isNull() & _is_before("published_at", bounds.first_time)
    before_first = F.coalesce(F.col("stream_seq") < bounds.first_seq, F.lit(False)) | unsaid
    return expired | (before_first & (F.col("published_at") >= F.lit(created)))


def _is_altered() -> Column:
    """Whether a copy differs from its row; a row that makes no message is not compared."""
    return F.exists(
        "own",
        lambda copy: (copy["content"] != F.col("content")) | (copy["header_hash"] != F.col("header_hash")),
    )


def _inbox_verdict(hop: InboxHop, wanted: ReconcileRequest) -> Column:
    first, received = F.try_element_at("covered", F.lit(1)), F.col("received")
    stream = hop.stream
    young = F.lit(hop.inbox.at - timedelta(seconds=wanted.grace_seconds))
    first_position = stream.current + stream.compared.first_seq
    is_earlier = (first["position"] < first_position) & _is_before(first["time"], hop.position.created)
    is_held = received["locked_until"] > F.lit(hop.inbox.at)
    is_unsettled = first["position"] > stream.current + hop.position.settled_seq
    without_copy = F.size("covered") == 0
    return _case(
        (received["processed_at"].isNotNull(), Verdict.DELIVERED),
        (received["dead_lettered_at"].isNotNull(), Verdict.DEAD),
        *((without_copy & (F.col("verdict") == each.value), each) for each in _CARRIED),
        (is_unsettled | is_held | (first["time"] > young), Verdict.PENDING),
        (received.isNull() & is_earlier, Verdict.EXPIRED),
        (received.isNull() & _is_before(first["time"], hop.inbox.pruned_before), Verdict.PRUNED),
        otherwise=Verdict.MISSING_IN_INBOX,
    )


def _inbox_hop(hop: InboxHop, wanted: ReconcileRequest) -> Column:
    received = F.col("received")
    taken = F.filter("covered", lambda copy: copy["seq"] == received["stream_seq"])
    copy = F.coalesce(F.try_element_at(taken, F.lit(1)), F.try_element_at("covered", F.lit(1)))
    is_same = F.exists("covered", lambda copy: copy["content"] == received["content_hash"])
    is_altered = (F.size("covered") > 0) & received["content_hash"].isNotNull() & ~is_same
    seconds = _seconds(copy["time"], received["processed_at"])
    return _hop(hop.name, "inbox_verdict", seconds, is_altered, wanted)


def _hop(name: str, verdict: str, seconds: Column, is_altered: Column, wanted: ReconcileRequest) -> Column:
    """Return a hop with all findings on an ID, worst first; ``delivered`` only without another finding."""
    conditions = {each: F.col(verdict) == each.value for each in Verdict if each is not Verdict.DELIVERED}
    conditions[Verdict.ALTERED] = is_altered
    if wanted.late_seconds is not None:
        conditions[Verdict.LATE] = seconds > wanted.late_seconds
    found = F.array_compact(F.array(*(F.when(holds, each.value) for each, holds in conditions.items())))
    return F.struct(
        F.lit(name).alias("hop"),
        F.when(F.size(found) > 0, found).otherwise(F.array(F.lit(Verdict.DELIVERED.value))).alias("findings"),
        seconds.alias("seconds"),
    )


def _seconds(begun: Column, ended: Column) -> Column:
    return ended.cast("double") - begun.cast("double")


def _case(*rules: tuple[Column, Verdict], otherwise: Verdict) -> Column:
    """Return the verdict of the first rule whose condition holds; null counts as false."""
    chosen: Column = F.lit(otherwise.value)
    for condition, verdict in reversed(rules):
        chosen = F.when(condition, verdict.value).otherwise(chosen)
    return chosen


def _is_before(time: Column | str, limit: datetime | None) -> Column:
    """Whether a time is before a limit; without a limit, none is."""
    column = F.col(time) if isinstance(time, str) else time
    return F.lit(False) if limit is None else column < F.lit(limit)


def _covered(hop: InboxHop) -> Column:
    """Return the copies of the consumer's stream that the consumer covers."""

    def is_covered(copy: Column) -> Column:
        is_ours = copy["stream"] == hop.position.stream
        return is_ours & _covers(hop.position, copy["subject"], copy["seq"], copy["time"])

    return F.filter("copies", is_covered)


def _covers(position: ConsumerPosition, subject: Column, seq: Column, time: Column) -> Column:
    """Whether the consumer's filters and start include a message."""
    covered = subject.isNotNull()
    if position.filters:
        covered = subject.rlike("|".join(f"(?:{_regex(pattern)})" for pattern in position.filters))
    if position.start_seq > 1:
        covered &= seq >= position.start_seq
    if position.start_time is not None:
        covered &= time >= F.lit(position.start_time)
    return covered


def _regex(pattern: str) -> str:
    """Convert a subject pattern to a regular expression: ``*`` is one token, a final ``>`` one or more."""
    wild = {"*": "[^.]+", ">": ".+"}
    return "^" + r"\.".join(wild.get(token) or re.escape(token) for token in pattern.split(".")) + "$"
