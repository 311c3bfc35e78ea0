"""Replay: put events back into the outbox in portions, so that new events wait for few of them.

``sql/queries/replay.sql`` chooses the events and writes the audit record.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sea_mq_worker.operators.ports import Chosen, Replay, ReplayResult, ReplayStep, ReplayTables
from sea_mq_worker.operators.records import OutboxFilter

if TYPE_CHECKING:
    from uuid import UUID


_PORTION_MAX = 1000
_POLL_SECONDS = 0.5
_AT_ONCE = "goes out: at once"


async def feed_replay(
    tables: ReplayTables,
    replay: Replay,
    chosen: Sequence[Chosen],
    *,
    per_second: int = 1000,
    ahead: int = 1000,
) -> AsyncIterator[ReplayStep]:
    """Put back portion after portion, and report each; an interrupted replay can be continued.

    Args:
        tables: the outbox.
        replay: the record.
        chosen: events that ``tables.choose`` returned for it.
        per_second: pace.
        ahead: cap on events that are put back and not claimed yet: a new event waits for no more of them.

    Raises:
        WorkerError: another run continues the same replay.
    """
    size = max(1, min(_PORTION_MAX, per_second, ahead))
    waiting: Sequence[UUID] = []
    for start in range(0, len(chosen), size):
        portion = chosen[start : start + size]
        if start:
            await asyncio.sleep(size / per_second)
        while len(waiting) + len(portion) > ahead:
            waiting = await tables.not_taken(waiting)
            if len(waiting) + len(portion) <= ahead:
                break
            yield _step(replay, start, chosen, waiting=len(waiting))
            await asyncio.sleep(_POLL_SECONDS)
        replay = await tables.put_back(replay, portion)
        waiting = [*waiting, *(one.id for one in portion)]
        yield _step(replay, start + len(portion), chosen)
    await tables.finish(replay)


async def replay_matching(
    tables: ReplayTables, which: OutboxFilter, *, actor: str, reason: str, cap: int, dry_run: bool = False
) -> ReplayResult:
    """Put back what matches, without waiting for workers; of more than ``cap``, or in a dry run, none."""
    chosen = await tables.choose(which, limit=cap + 1)
    replayed = 0
    if not dry_run and 0 < len(chosen) <= cap:
        begun = await tables.begin(which, actor=actor, reason=reason)
        async for step in feed_replay(tables, begun, chosen, ahead=len(chosen)):
            replayed = step.replayed
    return result_of(chosen, replayed)


def result_of(chosen: Sequence[Chosen], replayed: int) -> ReplayResult:
    published = [one.published_at for one in chosen if one.published_at]
    return ReplayResult(
        matched=len(chosen), replayed=replayed, last_published_at=max(published, default=None)
    )


def due_at(result: ReplayResult, window_seconds: float | None, *, now: datetime) -> datetime | None:
    """Return when the last event goes out: the stream drops a repeat within its deduplication window.

    None: at once, or unknown as ``window_seconds``.
    """
    if result.last_published_at is None or window_seconds is None:
        return None
    over = result.last_published_at + timedelta(seconds=window_seconds)
    return over if over > now else None


def outlook(result: ReplayResult, window_seconds: float | None, *, now: datetime) -> list[str]:
    """Return sentences on when replayed events go out, and what becomes of them at the consumers."""
    if result.last_published_at is None:
        return [_AT_ONCE]
    if window_seconds is None:
        when = "goes out: at once, or once the deduplication window is over if the stream still knows the ID"
    elif due := due_at(result, window_seconds, now=now):
        when = (
            f"goes out: the last from {due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC on, "
            f"once the stream has forgotten the ID: its deduplication window is {window_seconds:g} s"
        )
    else:
        when = _AT_ONCE
    return [
        when,
        "at the consumers: one that has processed an event skips it, because its inbox knows the ID",
    ]


def _step(replay: Replay, done: int, chosen: Sequence[Chosen], *, waiting: int = 0) -> ReplayStep:
    return ReplayStep(
        action=replay.id, done=done, total=len(chosen), replayed=replay.replayed, waiting=waiting
    )
