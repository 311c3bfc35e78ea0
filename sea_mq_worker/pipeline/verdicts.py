"""What became of each ID at each hop: outbox to stream, and stream to the inbox of each consumer.

``Judge`` takes facts, which are rows about an ID:

- ``kind`` 0 or 1: ``event``, a row of the table or of the archive, and the message expected of it;
- ``kind`` 2: ``received``, its row in the inbox;
- ``kind`` 3: ``replayed``, the times of audited replays that name the ID;
- ``kind`` 4 and above: ``copy``, a message in the own stream (4), or in another one.

``place`` orders facts of a kind: copies by their positions in the stream. A position is a sequence; those of
earlier streams with the same name are negative. One shuffle by ID brings all facts of an ID together. A
window in the order of kind and place gives each copy its predecessor, and what the inbox and the audit say of
the ID. An ID can have any number of copies and a key any number of events: windows spill.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo
from sea_mq_worker.pipeline.fingerprints import uuid_text

TABLE, ARCHIVED, RECEIVED, REPLAYED, COPY = range(5)
_KNOWN = ("event.replays", "received", "replayed")
_OF_EVENT = (
    *("key", "seq", "created_at", "replays"),
    *("published_at", "stream", "stream_seq", "in_table"),
)
"""What of an event its order, and the report on lost events, need."""
INCARNATION = 1 << 48
"""Offset of positions between streams with the same name."""

_CLOCK = timedelta(seconds=60)
"""Tolerance between the clocks of database and broker, where times of both are compared."""
_SKEW = timedelta(seconds=5)
"""The same between a replay's record and the copy that it caused."""


class Verdict(StrEnum):
    """Findings, worst first; an ID can have several, and the worst is its verdict."""

    MISSING_IN_STREAM = "missing-in-stream"
    """The broker acknowledged the event and retention has not removed it, but it is not in the stream."""
    MISSING_IN_INBOX = "missing-in-inbox"
    """The consumer has settled the message, but the inbox shows no effect."""
    ALTERED = "altered"
    """Subject, body or headers of a copy differ from the row, or the inbox recorded other content."""
    UNEXPECTED = "unexpected"
    """The stream contains the ID, but neither table nor archive does, and no prune removed it."""
    DUPLICATED = "duplicated"
    """The stream contains another copy that no audited replay explains."""
    OUT_OF_ORDER = "out-of-order"
    """Stored out of order: removing it, and as few others as possible, would restore the order of its key."""
    DEAD = "dead"
    """The publisher marked the event DEAD, or the inbox dead-lettered the message."""
    LATE = "late"
    """The time from occurrence to the stream, or from the stream to the effect, exceeded the limit."""
    PENDING = "pending"
    """In transit: not yet published, not yet delivered, being handled, or within the grace period."""
    EXPIRED = "expired"
    """Retention may have removed the message before it was landed in the lake, so it cannot be judged."""
    PRUNED = "pruned"
    """An operator pruned rows of this age, or erased the event, so a missing row proves nothing."""
    DELIVERED = "delivered"

    @property
    def bit(self) -> int:
        """The finding's bit in a set of findings; the lowest bit is the worst, and no bit is delivered."""
        return 0 if self is Verdict.DELIVERED else 1 << list(Verdict).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What the verdicts depend on besides the facts.

    Attributes:
        context: this service's context.
        consumers: the consumers' progress just before the inbox was read.
        asked_at: the database's time when the inbox was read.
        streams: streams by name, this service's first: bounds before the read, but the first message and the
            clock after it.
        in_part: only a part of the time was read, so that an ID without an event cannot be judged.
        grace: events published or stored within this time are never missing.
        late_seconds: a hop is late above this time; None: never.
        outbox_removed_before: rows of events may be gone if their message was stored before this time.
        inbox_removed_before: the same for rows of the inbox.
        erased: hashes of erased IDs, whose rows are gone, too.
    """

    context: str
    consumers: Sequence[ConsumerInfo]
    asked_at: datetime
    streams: Mapping[str, StreamInfo]
    in_part: bool
    grace: timedelta
    late_seconds: float | None
    outbox_removed_before: datetime | None = None
    inbox_removed_before: datetime | None = None
    erased: Sequence[str] = ()

    @property
    def own(self) -> StreamInfo:
        """This service's stream."""
        return next(iter(self.streams.values()))

    @property
    def hops(self) -> list[str]:
        """Source and target of each hop, the hop from the outbox first."""
        received = (f"{one.stream} -> {self.context} {one.name}" for one in self.consumers)
        return [f"outbox -> {self.own.name}", *received]

    def judge(self, facts: DataFrame) -> DataFrame:
        """Return each ID with its event, the first copy in the own stream, and findings at its ``hops``."""
        by_id = Window.partitionBy("id").orderBy("kind", "place")
        so_far = by_id.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        known = facts.select(
            *("id", "kind", "place", "event", "copy"),
            *(_any(name).over(so_far).alias(name.rpartition(".")[2]) for name in _KNOWN),
            *(F.lag(name).over(by_id).alias(f"{name}_before") for name in ("kind", "place")),
            F.lag("copy.time").over(by_id).alias("time_before"),
        )
        # A message that left the stream during the read may come from the lake, too.
        is_again = (F.col("kind") == F.col("kind_before")) & (F.col("place") == F.col("place_before"))
        gathered = known.where(~_true(is_again)).groupBy("id").agg(*self._gathered())
        gathered = gathered.withColumn("is_erased", F.lit(False))
        if self.erased:
            erased = facts.sparkSession.createDataFrame([(each,) for each in self.erased], "hash STRING")
            joined = gathered.drop("is_erased").withColumn("hash", F.sha2(uuid_text(F.col("id")), 256))
            erased = F.broadcast(erased.distinct().withColumn("is_erased", F.lit(True)))
            gathered = joined.join(erased, "hash", "left")
        hops = (self._outbox_hop(), *(self._inbox_hop(*each) for each in enumerate(self.consumers)))
        judged = F.array_compact(F.array(*hops)).alias("hops")
        is_received = F.col("received").isNotNull().alias("is_received")
        event = F.struct(*(f"event.{name}" for name in _OF_EVENT))
        event = F.when(F.col("event").isNotNull(), event).alias("event")
        return gathered.select("id", event, "replayed", "own", is_received, judged)

    def covers(self, stream: str) -> Column:
        """Return in which hops a message of a stream takes part, as bits by the consumers' numbers."""
        covered = (
            F.when(_covers(one), F.lit(1 << number)).otherwise(F.lit(0))
            for number, one in enumerate(self.consumers)
            if one.stream == stream
        )
        return reduce(Column.bitwiseOR, covered, F.lit(0)).cast("bigint")

    def _gathered(self) -> Iterator[Column]:
        is_own, time, first = F.col("kind") == COPY, F.col("copy.time"), F.struct("place", "copy.time")
        event = F.when(F.col("event").isNotNull(), F.struct("kind", "place", "event"))
        yield F.min(event)["event"].alias("event")
        for name in ("received", "replayed"):
            yield _any(name).alias(name)
        yield F.min(F.when(is_own, first)).alias("own")
        for name, extreme in (("least_sent", F.min), ("greatest_sent", F.max)):
            yield extreme(F.when(is_own, F.col("copy.sent"))).alias(name)
        is_further = is_own & (F.col("kind_before") == COPY)
        is_explained = _explained(F.col("time_before"), time, "replays")
        yield F.bool_or(_true(is_further & ~is_explained)).alias("is_duplicated")
        for number in range(len(self.consumers)):
            covered = _true(F.col("copy.hops").bitwiseAND(1 << number) != 0)
            is_taken = F.pmod("place", F.lit(INCARNATION)) == F.col("received.stream_seq")
            is_other = _true(F.col("copy.content") != F.col("received.content"))
            yield F.min(F.when(covered, first)).alias(f"copy{number}")
            yield F.min(F.when(covered & is_taken, time)).alias(f"taken{number}")
            is_altered = F.bool_or(covered & is_other) & ~F.bool_or(covered & ~is_other)
            yield is_altered.alias(f"is_altered{number}")

    def _outbox_hop(self) -> Column:
        # Events acknowledged before the inbox was read have their message below the last sequence.
        is_known, first = F.col("event").isNotNull(), F.col("own")
        is_removed = _before(first["time"], self.outbox_removed_before) | F.col("is_erased")
        state, published = F.col("event.state"), F.col("event.published_at")
        verdict = _case(
            (~is_known & is_removed, Verdict.PRUNED),
            (~is_known, Verdict.UNEXPECTED),
            (state.isin("PENDING", "CLAIMED"), Verdict.PENDING),
            (state == "DEAD", Verdict.DEAD),
            (first.isNotNull(), Verdict.DELIVERED),
            (published >= F.lit(self.asked_at - self.grace), Verdict.PENDING),
            (self._is_expired(), Verdict.EXPIRED),
            otherwise=Verdict.MISSING_IN_STREAM,
        )
        is_duplicated = F.when(F.col("is_duplicated"), Verdict.DUPLICATED.bit).otherwise(0)
        is_judged = is_known | (F.lit(not self.in_part) & first.isNotNull())
        seconds = _seconds(F.col("event.occurred_at"), first["time"])
        is_altered = F.lit(False)  # also if nothing is expected
        for name in ("least_sent", "greatest_sent"):
            is_altered |= _true(F.col(name) != F.col("event.sent"))
        return self._hop(0, is_judged, verdict.bitwiseOR(is_duplicated), is_altered, seconds)

    def _is_expired(self) -> Column:
        """Whether retention may have removed an event's message.

        A stream that refuses messages when it is full removes only messages above the maximum age. A younger
        missing message was removed by an operator, even at the stream's head. No retention removes a message
        that the stream never had: of an earlier stream, or above the last sequence.
        """
        published, sequence = F.col("event.published_at"), F.col("event.stream_seq")
        state, config = self.own, self.own.config
        expired = F.col("event.stream") != state.name
        if state.max_age_seconds:  # messages reach this age during the read, too
            oldest = max(self.asked_at, state.now) - timedelta(seconds=state.max_age_seconds)
            expired |= published < F.lit(oldest + _CLOCK)
        had = published >= F.lit(datetime.fromisoformat(state.created) - _CLOCK)
        had &= F.coalesce(sequence <= state.last_seq, F.lit(True))
        is_replaced = state.replaces and not config.get("discard_new_per_subject")
        if is_replaced or config.get("retention", "limits") != "limits" or config.get("allow_msg_ttl"):
            expired |= had  # the stream may have kept older messages
        is_limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes"))
        if is_limited and config.get("discard", "old") == "old":
            before_first = _before(published, state.first_time, within=timedelta())
            expired |= had & F.coalesce(sequence < state.first_seq, before_first)
        return expired

    def _inbox_hop(self, number: int, consumer: ConsumerInfo) -> Column:
        first, taken = F.col(f"copy{number}"), F.col(f"taken{number}")
        is_absent, processed = F.col("received").isNull(), F.col("received.processed_at")
        is_unsettled = first["place"] > consumer.ack_floor
        is_held = F.col("received.locked_until") > F.lit(self.asked_at)
        is_young = first["time"] > F.lit(self.asked_at - self.grace)
        has_left = first["place"] < self.streams[consumer.stream].first_seq
        before_creation = first["time"] < F.lit(datetime.fromisoformat(consumer.created))
        is_removed = _before(first["time"], self.inbox_removed_before) | F.col("is_erased")
        verdict = _case(
            (processed.isNotNull(), Verdict.DELIVERED),
            (F.col("received.dead_lettered_at").isNotNull(), Verdict.DEAD),
            (is_unsettled | is_held | is_young, Verdict.PENDING),
            # A consumer never received the messages that had left the stream before its creation.
            (is_absent & has_left & before_creation, Verdict.EXPIRED),
            (is_absent & is_removed, Verdict.PRUNED),
            otherwise=Verdict.MISSING_IN_INBOX,
        )
        is_judged = first.isNotNull()
        if consumer.stream == self.own.name and self.in_part:
            is_judged &= F.col("event").isNotNull()
        seconds = _seconds(F.coalesce(taken, first["time"]), processed)
        return self._hop(number + 1, is_judged, verdict, F.col(f"is_altered{number}"), seconds)

    def _hop(
        self, number: int, is_judged: Column, verdict: Column, is_altered: Column, seconds: Column
    ) -> Column:
        findings = verdict.bitwiseOR(F.when(is_altered, Verdict.ALTERED.bit).otherwise(0))
        if self.late_seconds is not None:
            is_late = F.when(seconds > self.late_seconds, Verdict.LATE.bit).otherwise(0)
            findings = findings.bitwiseOR(is_late)
        columns = (
            F.lit(number).alias("hop"),
            findings.cast("int").alias("findings"),
            seconds.alias("seconds"),
        )
        return F.when(is_judged, F.struct(*columns))


def out_of_order(judged: DataFrame) -> DataFrame:
    """Return the events of each key that are out of order: the fewest whose removal restores the order.

    A comparison of neighbours would report every event that overtook one late event. Therefore the longest
    run of events is determined whose positions increase with their insert order. The events outside of it are
    reported; of a swap of two neighbours, the overtaken one. Only events that are in the wrong order with any
    other one are compared so. An event whose first copy has left the stream, so that a replay's copy is the
    first one, is in order.
    """
    keyed = judged.where("event.key IS NOT NULL AND own IS NOT NULL").select(
        "id", "event.key", "event.seq", "own.place",
        _explained(F.col("event.created_at"), F.col("own.time"), "event.replays").alias("is_explained"),
    )  # fmt: skip
    ascending = Window.partitionBy("key").orderBy("seq", "place")
    descending = Window.partitionBy("key").orderBy(F.desc("seq"), F.desc("place"))
    others = Window.unboundedPreceding, -1
    compared = keyed.withColumns(
        {
            "highest_before": F.max("place").over(ascending.rowsBetween(*others)),
            "lowest_after": F.min("place").over(descending.rowsBetween(*others)),
        }
    )
    wrong = compared.where("(highest_before > place OR lowest_after < place) AND NOT is_explained")
    return wrong.select("key", "id", "seq", "place").groupBy("key").applyInArrow(_outside, "id BINARY")


def _outside(events: pa.Table) -> pa.Table:
    ordered = events.sort_by([("seq", "ascending"), ("place", "ascending")])
    outside = pa.array(outside_longest_run(ordered["place"].to_pylist()), pa.int64())
    return ordered.select(["id"]).take(outside)


def outside_longest_run(positions: Sequence[int]) -> list[int]:
    """Return the indexes outside a longest increasing subsequence."""
    lowest: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, position in enumerate(positions):
        length = bisect_left(lowest, position)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [index]
        lowest[length : length + 1] = [position]
    run = set()
    index = ends[-1] if ends else -1
    while index >= 0:
        run.add(index)
        index = before[index]
    return [index for index in range(len(positions)) if index not in run]


def _case(*rules: tuple[Column, Verdict], otherwise: Verdict) -> Column:
    """Return the bit of the first rule whose condition holds."""
    held = F.lit(otherwise.bit)
    for condition, verdict in reversed(rules):
        held = F.when(condition, verdict.bit).otherwise(held)
    return held


def _any(name: str) -> Column:
    """Return a value of which an ID has only one."""
    return F.first(name, ignorenulls=True)


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _explained(earlier: Column, later: Column, selected: str) -> Column:
    """Whether a replay of the ID was recorded between two times."""
    none = F.array().cast("array<timestamp>")
    replays = F.concat(*(F.coalesce(F.col(name), none) for name in (selected, "replayed")))
    is_near = F.exists(replays, lambda at: (at > earlier - F.lit(_SKEW)) & (at < later + F.lit(_SKEW)))
    # The lambda is slow, and few events were replayed.
    is_replayed = _true(F.size(selected) > 0) | F.col("replayed").isNotNull()
    return F.when(is_replayed, is_near).otherwise(F.lit(False))


def _before(time: Column, limit: datetime | None, *, within: timedelta = _CLOCK) -> Column:
    return F.lit(False) if limit is None else _true(time < F.lit(limit + within))


def _seconds(begin: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(begin)) / 1e6


def _covers(consumer: ConsumerInfo) -> Column:
    """Whether the consumer's filters and start include a message."""
    patterns = "|".join(_regex(pattern) for pattern in consumer.filters)
    covered = F.col("subject").rlike(rf"\A(?:{patterns})\z") if patterns else F.lit(True)
    match consumer.config.get("deliver_policy", "all"):
        case "all":
            return covered
        case "by_start_sequence":
            return covered & (F.col("seq") >= int(consumer.config["opt_start_seq"]))
        case "by_start_time":
            start = consumer.config["opt_start_time"]
        case _:  # begins with the last messages at its creation
            start = consumer.created
    return covered & (F.col("time") >= F.lit(datetime.fromisoformat(start)))


def _regex(pattern: str) -> str:
    """Convert a subject pattern to a regular expression: ``*`` is one token, a final ``>`` one or more."""
    wild = {"*": r"[^.]+", ">": "(?s:.+)"}
    return r"\.".join(wild.get(token) or re.escape(token) for token in pattern.split("."))
