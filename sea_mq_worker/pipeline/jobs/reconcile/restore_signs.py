"""Events that the stream lost: detect a broker restored to an older state, and put the events back."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.operations.database import replays
from sea_mq_worker.operations.replay import replay_matching
from sea_mq_worker.pipeline.jobs.reconcile.outbox import StreamEvidence
from sea_mq_worker.pipeline.jobs.reconcile.reading import Messages
from sea_mq_worker.pipeline.jobs.reconcile.result import Requeued
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict
from sea_mq_worker.settings import Settings

_BATCH = 1000
_PER_SECOND = 1000
_EXAMPLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Options for putting lost events back.

    Attributes:
        actor: the operator, for the audit.
        reason: the operator's reason, for the audit.
        cap: put back no event if more than this are lost, because the settings may name another broker.
        dry_run: only count.
    """

    actor: str
    reason: str
    cap: int
    dry_run: bool


def lost(judged: DataFrame) -> DataFrame:
    """Return the events that are missing in the stream."""
    return judged.where(F.col("state_verdict") == Verdict.MISSING_IN_STREAM.value)


def restore_signs(missing: DataFrame, messages: Messages, facts: StreamEvidence) -> list[str]:
    """Describe the signs of a restored broker that the lost IDs show."""
    ours = missing.where(F.col("stream") == facts.stream)
    row = ours.agg(
        F.count("*").alias("lost"),
        F.count_if(F.col("published_at") < F.lit(facts.created)).alias("older"),
        F.count_if(F.col("stream_seq") > facts.last_seq).alias("above"),
        F.max("stream_seq").alias("highest"),
    ).first()
    if row is None or not row.lost:
        return []
    there = messages.frame.select(
        (F.col("position") - messages.current).alias("stream_seq"), F.lit(1).alias("one")
    )
    replaced = (
        ours.where(F.col("stream_seq") <= facts.last_seq).join(there, "stream_seq", "left_semi").count()
    )
    return _notes(facts, older=row.older, above=row.above, highest=row.highest, replaced=replaced)


def put_back(
    settings: Settings, missing: DataFrame, how: Requeue, on_progress: Callable[[str], None]
) -> Requeued:
    """Set lost rows that are still in the table from PUBLISHED to PENDING, earliest first.

    Each batch is one transaction of the worker's own replay, with an audit record. A repetition puts back
    only rows that are still lost and PUBLISHED.

    Raises:
        StoreUnavailableError: earlier batches stay put back; a repetition is safe.
        BrokerUnavailableError: no row was put back.
    """
    counts = {row.in_table: row["count"] for row in missing.groupBy("in_table").count().collect()}
    rows, archived = counts.get(True, 0), counts.get(False, 0)
    capped = rows > how.cap
    replayed = 0
    if rows and not (how.dry_run or capped):
        chosen = missing.where("in_table").orderBy("seq").select("id").collect()
        replayed = asyncio.run(_replay(settings, [UUID(row.id) for row in chosen], how, on_progress))
    named = missing.where("NOT in_table").orderBy("seq").limit(_EXAMPLES) if archived else None
    return Requeued(
        lost=rows + archived,
        replayed=replayed,
        capped=capped,
        archived=[row.id for row in named.collect()] if named else [],
        archived_count=archived,
        dry_run=how.dry_run,
    )


def _notes(facts: StreamEvidence, *, older: int, above: int, highest: int | None, replaced: int) -> list[str]:
    name = facts.stream
    notes = []
    if above:
        notes.append(
            f"{name} was restored to an older state: {above} lost IDs were acknowledged above its last "
            f"sequence {facts.last_seq}, up to {highest}; use --requeue to publish the lost events again"
        )
    if replaced:
        notes.append(
            f"{name} contains other messages at the sequences of {replaced} lost IDs: it was restored or "
            "created again, and has stored new messages since"
        )
    if older:
        notes.append(
            f"{name} was created at {facts.created.isoformat()}, after {older} lost IDs had been "
            "acknowledged by an earlier stream with this name"
        )
    return notes


async def _replay(
    settings: Settings, ids: Sequence[UUID], how: Requeue, on_progress: Callable[[str], None]
) -> int:
    replayed = 0
    async with replays(settings) as tables:
        for start in range(0, len(ids), _BATCH):
            batch = tuple(ids[start : start + _BATCH])
            which = OutboxFilter(ids=batch, states=(EventState.PUBLISHED,))
            result = await replay_matching(tables, which, actor=how.actor, reason=how.reason, cap=len(batch))
            replayed += result.replayed
            on_progress(f"put back {replayed} of {len(ids)}")
            if start + _BATCH < len(ids):
                await asyncio.sleep(_BATCH / _PER_SECOND)
    return replayed
