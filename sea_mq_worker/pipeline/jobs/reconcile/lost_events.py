"""Events that the stream lost: detect a broker restored to an older state, and put the events back."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.jobs.reconcile.result import Requeue, Requeued
from sea_mq_worker.settings import Settings

_BATCH = 1000
_PAUSE_SECONDS = 1.0
_EXAMPLES = 20


def restore_signs(lost: DataFrame, state: StreamInfo) -> list[str]:
    """Describe the signs of a restored or recreated stream that the lost events show."""
    is_older = F.col("published_at") < F.lit(datetime.fromisoformat(state.created))
    is_above = F.col("stream_seq") > state.last_seq
    count = lost.where((F.col("stream") == state.name) & (is_older | is_above)).count()
    note = (
        f"{state.name} was restored to an older state or created again: {count} lost IDs were acknowledged"
        f" above its last sequence {state.last_seq}, or before its creation at {state.created}"
    )
    return [note] if count else []


def put_back(
    settings: Settings, lost: DataFrame, how: Requeue, on_progress: Callable[[str], None]
) -> Requeued:
    """Set lost rows that are still in the table from PUBLISHED to PENDING, earliest first.

    Each batch is one transaction of the worker's own replay, with an audit record. A repetition puts back
    only rows that are still lost and PUBLISHED.

    Raises:
        StoreUnavailableError: earlier batches stay put back; a repetition is safe.
        BrokerUnavailableError: no row was put back.
    """
    rows, archived = lost.where("in_table").count(), lost.where("NOT in_table").count()
    capped, replayed = rows > how.cap, 0
    if rows and not (how.dry_run or capped):
        chosen = lost.where("in_table").orderBy("seq").select("id").collect()
        replayed = asyncio.run(_replay(settings, [UUID(row.id) for row in chosen], how, on_progress))
    named = lost.where("NOT in_table").orderBy("seq").limit(_EXAMPLES).collect()
    return Requeued(
        lost=rows + archived,
        replayed=replayed,
        capped=capped,
        archived=[row.id for row in named],
        archived_count=archived,
        dry_run=how.dry_run,
    )


async def _replay(
    settings: Settings, ids: Sequence[UUID], how: Requeue, on_progress: Callable[[str], None]
) -> int:
    replayed = 0
    async with open_tables(settings) as pool:
        for start in range(0, len(ids), _BATCH):
            batch = tuple(ids[start : start + _BATCH])
            which = OutboxFilter(ids=batch, states=(EventState.PUBLISHED,))
            result = await replay_matching(pool, which, actor=how.actor, reason=how.reason, cap=len(batch))
            replayed += result.replayed
            on_progress(f"put back {replayed} of {len(ids)}")
            if start + _BATCH < len(ids):
                await asyncio.sleep(_PAUSE_SECONDS)
    return replayed
