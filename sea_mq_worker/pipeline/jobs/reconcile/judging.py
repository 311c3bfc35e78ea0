"""Judge each ID at each hop: outbox to stream, and stream to the inbox of each consumer."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.adapters.nats.server_info import ConsumerInfo
from sea_mq_worker.pipeline.jobs.reconcile.audit import AuditedReplay, unexplained
from sea_mq_worker.pipeline.jobs.reconcile.broker import may_drop
from sea_mq_worker.pipeline.jobs.reconcile.order import order_conflicts, out_of_order
from sea_mq_worker.pipeline.jobs.reconcile.request import ReconcileRequest
from sea_mq_worker.pipeline.jobs.reconcile.sources import INBOX_COLUMNS, Inbox, Sources, Stream
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict

_CLOCK_SECONDS = 60
"""Tolerance between the clocks of database and broker, for deciding if a row belongs to an older stream."""

_COPY = ("position", "stream", "seq", "time", "subject", "content", "header_hash")
_SELECTED = ("id", "event_type", "ordering_key", "correlation_id", "created_at")
_CARRIED = (Verdict.MISSING_IN_STREAM, Verdict.PENDING, Verdict.DEAD, Verdict.EXPIRED)
"""Verdicts of an event without a copy that the next hop repeats."""


def hop_names(sources: Sources) -> list[str]:
    """Return source and target of each hop, the hop from the outbox first."""
    own = next(iter(sources.streams))
    consumers = [_name(inbox, consumer) for inbox in sources.inboxes for consumer in inbox.consumers]
    return [f"outbox -> {own}", *consumers]


def judge(sources: Sources, wanted: ReconcileRequest) -> DataFrame:
    """Return one row per ID, with all but the findings of ``further_findings``.

    Its columns are those of the event that the comparison needs, ``times`` of the copies in the own stream,
    ``position`` of the first one, and ``hops``: ``hop``, ``findings`` and ``seconds`` (from occurrence to
    stream, or from stream to effect) of each hop that the ID belongs to.
    """
    own = next(iter(sources.streams.values()))
    first = F.try_element_at("own", F.lit(1))
    # Only a part of the events is read for a part of the time, so other IDs of the stream cannot be judged.
    is_judged = F.col("state").isNotNull() if wanted.since or wanted.until else F.lit(True)
    judged = _by_id(sources)
    judged = judged.withColumn("own", F.filter("copies", lambda copy: copy["stream"] == own.state.name))
    judged = judged.withColumn("verdict", _outbox_verdict(sources, own, wanted))
    is_own = is_judged & (F.col("state").isNotNull() | (F.size("own") > 0))
    took = _seconds(F.col("occurred_at"), first["time"])
    hops = [F.when(is_own, _hop(hop_names(sources)[0], "verdict", took, _is_altered(), wanted))]
    for number, inbox in enumerate(sources.inboxes):
        judged = judged.withColumn("received", F.col(f"inbox{number}"))
        for consumer in inbox.consumers:
            stream = sources.streams[consumer.stream]
            judged = judged.withColumn("covered", _covered(consumer))
            judged = judged.withColumn("inbox_verdict", _inbox_verdict(inbox, consumer, stream, wanted))
            is_expected = F.size("covered") > 0
            if stream is own:
                at = F.coalesce("published_at", "created_at")
                is_missing = _covers(consumer, F.col("sent_as"), F.col("stream_seq"), at)
                is_expected = is_judged & (is_expected | ((F.size("own") == 0) & is_missing))
            name = f"hop{len(hops)}"
            judged = judged.withColumn(name, F.when(is_expected, _inbox_hop(_name(inbox, consumer), wanted)))
            hops.append(F.col(name))
    return judged.select(
        *(*_SELECTED, "seq", "in_table", "published_at", "stream", "stream_seq"),
        F.transform("own", lambda copy: copy["time"]).alias("times"),
        first["position"].alias("position"),
        F.array_compact(F.array(*hops)).alias("hops"),
    )


def _by_id(sources: Sources) -> DataFrame:
    """Return one row per ID: the columns of its event, its ``copies`` in order, and its row of each inbox.

    Of events with one ID the table's is used, else the one published last. ``inbox0`` is the row of the first
    inbox, and so on. An ID that only an inbox has is left out.
    """
    events = sources.events
    messages = (each.messages.withColumn("stream", F.lit(name)) for name, each in sources.streams.items())
    received = [f"inbox{number}" for number in range(len(sources.inboxes))]
    kinds = [
        events.select("id", F.struct(*(name for name in events.columns if name != "id")).alias("event")),
        *(rows.select("id", F.struct(*_COPY).alias("copy")) for rows in messages),
        *(
            inbox.rows.select("id", F.struct(*INBOX_COLUMNS).alias(name))
            for name, inbox in zip(received, sources.inboxes, strict=True)
        ),
    ]
    rows = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), kinds)
    grouped = rows.groupBy("id").agg(
        F.max_by("event", F.struct("event.in_table", "event.published_at")).alias("event"),
        # A message that left the stream during the read may come from the lake, too.
        F.array_distinct(F.sort_array(F.collect_list("copy"))).alias("copies"),
        *(F.first(name, ignorenulls=True).alias(name) for name in received),
    )
    found = grouped.where(F.col("event").isNotNull() | (F.size("copies") > 0))
    return found.select("*", "event.*").drop("event")


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


def _outbox_verdict(sources: Sources, own: Stream, wanted: ReconcileRequest) -> Column:
    # Events acknowledged before the first inbox was read have their message below the last sequence.
    asked_at, audit = sources.inboxes[0].at, sources.audit
    unknown = F.col("state").isNull()
    first = F.try_element_at("own", F.lit(1))
    removed = (audit.outbox_pruned_before, None if wanted.lake else audit.archived_before)
    removed_before = max((limit for limit in removed if limit), default=None)
    return _case(
        (unknown & _is_before(first["time"], removed_before), Verdict.PRUNED),
        (unknown, Verdict.UNEXPECTED),
        (F.col("state").isin("PENDING", "CLAIMED"), Verdict.PENDING),
        (F.col("state") == "DEAD", Verdict.DEAD),
        (F.size("own") > 0, Verdict.DELIVERED),
        (F.col("published_at") >= F.lit(asked_at - timedelta(seconds=wanted.grace_seconds)), Verdict.PENDING),
        (_is_expired(own, asked_at), Verdict.EXPIRED),
        otherwise=Verdict.MISSING_IN_STREAM,
    )


def _is_expired(own: Stream, asked_at: datetime) -> Column:
    """Whether retention may have removed the message.

    A stream that refuses messages when it is full removes only messages above the maximum age. A younger
    missing message was removed by an operator, even at the stream's head.
    """
    state = own.state
    expired = F.coalesce(F.col("stream") != state.name, F.lit(False))
    if state.max_age_seconds:
        oldest = asked_at - timedelta(seconds=state.max_age_seconds)
        expired |= _is_before(F.col("published_at"), oldest)
    if not may_drop(state.config):
        return expired
    created = datetime.fromisoformat(state.created) - timedelta(seconds=_CLOCK_SECONDS)
    unsaid = F.col("stream_seq").isNull() & _is_before(F.col("published_at"), state.first_time)
    before_first = F.coalesce(F.col("stream_seq") < state.first_seq, F.lit(False)) | unsaid
    return expired | (before_first & (F.col("published_at") >= F.lit(created)))


def _is_altered() -> Column:
    """Whether a copy differs from its row; a row that makes no message is not compared."""
    return F.exists(
        "own",
        lambda copy: (copy["content"] != F.col("content")) | (copy["header_hash"] != F.col("header_hash")),
    )


def _inbox_verdict(inbox: Inbox, consumer: ConsumerInfo, stream: Stream, wanted: ReconcileRequest) -> Column:
    first, received = F.try_element_at("covered", F.lit(1)), F.col("received")
    created = datetime.fromisoformat(consumer.created)
    has_left = first["position"] < stream.current + stream.state.first_seq
    is_held = received["locked_until"] > F.lit(inbox.at)
    is_unsettled = first["position"] > stream.current + consumer.ack_floor
    is_young = first["time"] > F.lit(inbox.at - timedelta(seconds=wanted.grace_seconds))
    without_copy = F.size("covered") == 0
    return _case(
        (received["processed_at"].isNotNull(), Verdict.DELIVERED),
        (received["dead_lettered_at"].isNotNull(), Verdict.DEAD),
        *((without_copy & (F.col("verdict") == each.value), each) for each in _CARRIED),
        (is_unsettled | is_held | is_young, Verdict.PENDING),
        # A consumer never received the messages that had left the stream before its creation.
        (received.isNull() & has_left & _is_before(first["time"], created), Verdict.EXPIRED),
        (received.isNull() & _is_before(first["time"], inbox.pruned_before), Verdict.PRUNED),
        otherwise=Verdict.MISSING_IN_INBOX,
    )


def _inbox_hop(name: str, wanted: ReconcileRequest) -> Column:
    received = F.col("received")
    taken = F.filter("covered", lambda copy: copy["seq"] == received["stream_seq"])
    copy = F.coalesce(F.try_element_at(taken, F.lit(1)), F.try_element_at("covered", F.lit(1)))
    is_same = F.exists("covered", lambda copy: copy["content"] == received["content_hash"])
    is_altered = (F.size("covered") > 0) & received["content_hash"].isNotNull() & ~is_same
    took = _seconds(copy["time"], received["processed_at"])
    return _hop(name, "inbox_verdict", took, is_altered, wanted)


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


def _is_before(time: Column, limit: datetime | None) -> Column:
    """Whether a time is before a limit; without a limit, none is."""
    return F.lit(False) if limit is None else time < F.lit(limit)


def _covered(consumer: ConsumerInfo) -> Column:
    """Return the copies in the consumer's stream that the consumer covers."""

    def is_covered(copy: Column) -> Column:
        is_here = copy["stream"] == consumer.stream
        return is_here & _covers(consumer, copy["subject"], copy["seq"], copy["time"])

    return F.filter("copies", is_covered)


def _covers(consumer: ConsumerInfo, subject: Column, seq: Column, time: Column) -> Column:
    """Whether the consumer's filters and start include a message."""
    patterns = "|".join(f"(?:{_regex(pattern)})" for pattern in consumer.filters)
    covered = subject.rlike(patterns) if patterns else subject.isNotNull()
    match consumer.config.get("deliver_policy", "all"):
        case "all":
            return covered
        case "by_start_sequence":
            return covered & (seq >= int(consumer.config["opt_start_seq"]))
        case "by_start_time":
            return covered & (time >= F.lit(datetime.fromisoformat(consumer.config["opt_start_time"])))
        case _:  # begins with the last messages at its creation
            return covered & (time >= F.lit(datetime.fromisoformat(consumer.created)))


def _name(inbox: Inbox, consumer: ConsumerInfo) -> str:
    return f"{consumer.stream} -> {inbox.context} {consumer.name}"


def _regex(pattern: str) -> str:
    """Convert a subject pattern to a regular expression: ``*`` is one token, a final ``>`` one or more."""
    wild = {"*": "[^.]+", ">": ".+"}
    return "^" + r"\.".join(wild.get(token) or re.escape(token) for token in pattern.split(".")) + "$"
