"""Judge the hop stream -> inbox: compare each message of a consumer with the inbox of its service."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.outbox import Limits
from sea_mq_worker.pipeline.jobs.reconcile.verdict_columns import case, findings
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFacts:
    """Range and progress of a durable consumer, queried before the inbox was read.

    Attributes:
        filters: subject patterns, any of which may match; empty: all subjects.
        start_seq: the first sequence that the consumer covers.
        start_time: the earliest storage time that the consumer covers; None: any.
        created: the consumer's creation time; it never received messages that the stream had removed by then.
        settled: position up to which all messages are settled.
        first_position: position of the first message in the stream; earlier messages come from the lake.
        read_at: the database's time of the query.
    """

    stream: str
    durable: str
    filters: Sequence[str]
    start_seq: int
    start_time: datetime | None
    created: datetime
    settled: int
    first_position: int
    read_at: datetime


def covered(messages: DataFrame, consumer: ConsumerFacts) -> DataFrame:
    """Return the messages that the consumer's filters and start position include."""
    return messages.where(
        _matches(F.col("subject"), consumer) & _begun(F.col("seq"), F.col("time"), consumer)
    )


def covered_copies(judged: DataFrame, consumer: ConsumerFacts) -> DataFrame:
    """Return own events that the consumer covers, with the verdict of the previous hop and their copies."""
    copies = F.filter(
        "copies",
        lambda copy: _matches(copy["subject"], consumer) & _begun(copy["seq"], copy["time"], consumer),
    )
    expected = _matches(F.col("sent_as"), consumer) & _begun(
        F.col("stream_seq"), F.coalesce("published_at", "created_at"), consumer
    )
    kept = judged.where((F.size(copies) > 0) | (F.col("copies").isNull() & expected))
    covered_ones = F.when(F.size(copies) > 0, copies)
    return kept.select("id", F.col("state_verdict").alias("before"), covered_ones.alias("copies"))


def judge_inbox(
    expected: DataFrame,
    inbox: DataFrame,
    consumer: ConsumerFacts,
    limits: Limits,
    *,
    pruned_before: datetime | None = None,
) -> DataFrame:
    """Add ``state_verdict``, ``findings`` and ``seconds`` (from stored to processed).

    An ID that never reached the stream keeps its verdict of the previous hop, unless the inbox contains it.

    Args:
        expected: ``id``, ``copies``, and ``before``, the verdict of the previous hop (or null).
        inbox: rows of ``inbox_messages``.
        consumer: range and progress of the consumer.
        limits: the limits of the run.
        pruned_before: messages processed before this time may have been pruned; None: no prune.
    """
    rows = inbox.select(
        F.col("message_id").alias("id"),
        *("processed_at", "dead_lettered_at", "locked_until", "content_hash"),
        F.col("stream_seq").alias("received_seq"),
        F.lit(True).alias("received"),
    )
    joined = expected.join(rows, "id", "left")
    taken = F.filter("copies", lambda copy: copy["seq"] == F.col("received_seq"))
    copy = F.coalesce(F.try_element_at(taken, F.lit(1)), F.try_element_at("copies", F.lit(1)))
    seconds = F.col("processed_at").cast("double") - copy["time"].cast("double")
    judged = joined.withColumn("seconds", seconds)
    judged = judged.withColumn("state_verdict", _state(consumer, limits, pruned_before))
    same = F.exists("copies", lambda copy: copy["content"] == F.col("content_hash"))
    further = {
        Verdict.ALTERED: F.col("content_hash").isNotNull() & ~same,
        Verdict.LATE: F.lit(False) if limits.late_seconds is None else F.col("seconds") > limits.late_seconds,
    }
    return judged.withColumn("findings", findings(F.col("state_verdict"), further))


def _state(consumer: ConsumerFacts, limits: Limits, pruned_before: datetime | None) -> Column:
    first = F.try_element_at("copies", F.lit(1))
    pruned = F.lit(False) if pruned_before is None else first["time"] < F.lit(pruned_before)
    young = F.lit(consumer.read_at - timedelta(seconds=limits.grace_seconds))
    is_earlier = (first["position"] < consumer.first_position) & (first["time"] < F.lit(consumer.created))
    held = F.col("locked_until") > F.lit(consumer.read_at)
    rules = [
        (F.col("processed_at").isNotNull(), Verdict.DELIVERED),
        (F.col("dead_lettered_at").isNotNull(), Verdict.DEAD),
        *((F.col("copies").isNull() & (F.col("before") == each.value), each) for each in _CARRIED),
        ((first["position"] > consumer.settled) | held | (first["time"] > young), Verdict.PENDING),
        (F.col("received").isNull() & is_earlier, Verdict.EXPIRED),
        (F.col("received").isNull() & pruned, Verdict.PRUNED),
    ]
    return case(*rules, otherwise=Verdict.MISSING_IN_INBOX)


_CARRIED = (Verdict.MISSING_IN_STREAM, Verdict.PENDING, Verdict.DEAD, Verdict.EXPIRED)


def _matches(subject: Column, consumer: ConsumerFacts) -> Column:
    if not consumer.filters:
        return subject.isNotNull()
    return subject.rlike("|".join(f"(?:{_regex(pattern)})" for pattern in consumer.filters))


def _regex(pattern: str) -> str:
    """Convert a subject pattern to a regular expression: ``*`` is one token, a final ``>`` one or more."""
    wild = {"*": "[^.]+", ">": ".+"}
    return "^" + r"\.".join(wild.get(token) or re.escape(token) for token in pattern.split(".")) + "$"


def _begun(seq: Column, time: Column, consumer: ConsumerFacts) -> Column:
    begun = F.lit(True) if consumer.start_seq <= 1 else seq >= consumer.start_seq
    return begun if consumer.start_time is None else begun & (time >= F.lit(consumer.start_time))
