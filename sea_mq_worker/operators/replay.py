"""Replay: put events back into the outbox in portions, so that new events wait for few of them.

A replay changes events from PUBLISHED or DEAD to PENDING, the earliest first, which keeps each key's order.
Its record in the audit holds its filter and its progress, so that an interrupted replay can be continued.
Each function takes a pool that was opened with ``OPERATOR_HINTS``, and raises what ``translated`` raises.
"""

import json
from asyncio import sleep
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import asyncpg

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.operators.changes import check_accountable, selection_of
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.tables import SQL
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_PORTION_MAX = 1000
_POLL_SECONDS = 0.5
_LOWEST = -(2**63)
"""Below every seq: who writes rows past the triggers may choose a negative one."""
_AT_ONCE = "goes out: at once"


class Chosen(NamedTuple):
    """An event to put back; ``published_at`` is None for a DEAD one."""

    id: UUID
    seq: int
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay that has begun.

    Attributes:
        id: id of its record in ``operator_actions``.
        at: when the replay began; None: just now.
        through: all events up to this seq are done.
        replayed: number of events put back so far.
    """

    id: int
    which: OutboxFilter
    at: datetime | None = None
    through: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """Progress of a replay.

    Attributes:
        done: number of events of this run that are done.
        replayed: number of events put back, including those of earlier runs.
        waiting: number of events put back but not yet claimed, for which the replay waits; 0: it continues.
    """

    done: int
    replayed: int
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        matched: number of events that could be replayed; cap + 1 means more than the cap.
        replayed: number of events put back; 0 in a dry run, and if more than the cap matched.
        last_published_at: when the last of them was published; None: all were DEAD.
    """

    matched: int
    replayed: int
    last_published_at: datetime | None = None


async def choose(
    pool: asyncpg.Pool, which: OutboxFilter, *, limit: int | None, resumed: Replay | None = None
) -> list[Chosen]:
    """Return matching PUBLISHED and DEAD events by seq; of a resumed replay, the remaining ones.

    An event that was published since ``resumed`` began is left out: the replay itself may have put it back.
    The limit and the page of the filter do not matter.
    """
    through = (resumed.through if resumed else 0) or _LOWEST
    begun_at = resumed.at if resumed else None
    bound = SQL["choose"].bind(_terminal(which), through=through, begun_at=begun_at, limit=limit)
    return [Chosen(**row) for row in await fetch_with_long_timeout(pool, *bound)]


async def begin(pool: asyncpg.Pool, which: OutboxFilter, *, actor: str, reason: str) -> Replay:
    """Begin the record of a replay."""
    check_accountable(actor, reason)
    selection = selection_of(_terminal(which))
    [row] = await fetch(pool, *SQL["begin_replay"].bind(actor=actor, reason=reason, selection=selection))
    return Replay(id=row["id"], which=which)


def _terminal(which: OutboxFilter) -> OutboxFilter:
    return replace(which, states=tuple(state for state in _TERMINAL if state in which.states))


async def load(pool: asyncpg.Pool, action: int) -> Replay:
    """Return an interrupted replay.

    Raises:
        WorkerError: there is none, it is finished, or the pipeline has begun it.
    """
    rows = await fetch(pool, *SQL["load_replay"].bind(action=action))
    if not rows:
        raise WorkerError(
            f"action {action} is no replay; `python -m sea_mq_worker audit --action replay` lists them"
        )
    [row] = rows
    given = json.loads(row["selection"])
    progress = given.pop("progress", {"finished": True})
    if progress["finished"]:
        raise WorkerError(f"replay {action} is finished: it put back {row['affected']}")
    if "as_given" in progress:
        raise WorkerError(f"replay {action} is the pipeline's: run the same `pipeline replay` again")
    given["states"] = tuple(map(EventState, given["states"]))
    given |= {name: datetime.fromisoformat(given[name]) for name in ("since", "until") if name in given}
    if "ids" in given:
        given["ids"] = tuple(map(UUID, given["ids"]))
    if "correlation_id" in given:
        given["correlation_id"] = UUID(given["correlation_id"])
    which = OutboxFilter(**given)
    return Replay(id=action, which=which, at=row["at"], through=progress["through"], replayed=row["affected"])


async def feed_replay(
    pool: asyncpg.Pool,
    replay: Replay,
    chosen: Sequence[Chosen],
    *,
    hold_dead_keys: bool = False,
    per_second: int = 1000,
    ahead: int = 1000,
) -> AsyncIterator[ReplayStep]:
    """Put back portion after portion, and report each; an interrupted replay can be continued.

    ``ahead`` caps the events that are put back and not claimed yet: a new event waits for no more of them.
    ``hold_dead_keys``: a DEAD event holds back the later ones of its key.

    Raises:
        WorkerError: another run continues the same replay.
    """
    size = max(1, min(_PORTION_MAX, per_second, ahead))
    waiting: Sequence[UUID] = []
    through, replayed = replay.through, replay.replayed
    for start in range(0, len(chosen), size):
        portion = chosen[start : start + size]
        if start:
            await sleep(size / per_second)
        while len(waiting) + len(portion) > ahead:
            # An event that waits for another one of its key is no longer counted, since it delays no other.
            bound = SQL["not_taken"].bind(ids=waiting, hold_dead_keys=hold_dead_keys)
            waiting = [row["id"] for row in await fetch(pool, *bound)]
            if len(waiting) + len(portion) <= ahead:
                break
            yield ReplayStep(done=start, replayed=replayed, waiting=len(waiting))
            await sleep(_POLL_SECONDS)
        ids, last_seq = [one.id for one in portion], max(portion[-1].seq, through)
        bound = SQL["put_back"].bind(ids=ids, action=replay.id, through=through, last_seq=last_seq)
        [row] = await fetch(pool, *bound)
        if not row["is_mine"]:
            raise WorkerError(f"another run continues replay {replay.id}; let it, or stop it first")
        through, replayed = last_seq, replayed + row["count"]
        waiting = [*waiting, *ids]
        yield ReplayStep(done=start + len(portion), replayed=replayed)
    await fetch(pool, *SQL["finish_replay"].bind(action=replay.id))


async def replay_matching(
    pool: asyncpg.Pool, which: OutboxFilter, *, actor: str, reason: str, cap: int, dry_run: bool = False
) -> ReplayResult:
    """Put back what matches, without waiting for workers; of more than ``cap``, or in a dry run, none."""
    chosen = await choose(pool, which, limit=cap + 1)
    replayed = 0
    if not dry_run and 0 < len(chosen) <= cap:
        begun = await begin(pool, which, actor=actor, reason=reason)
        async for step in feed_replay(pool, begun, chosen, ahead=len(chosen)):
            replayed = step.replayed
    return result_of(chosen, replayed)


def result_of(chosen: Sequence[Chosen], replayed: int) -> ReplayResult:
    last = max((one.published_at for one in chosen if one.published_at), default=None)
    return ReplayResult(matched=len(chosen), replayed=replayed, last_published_at=last)


# --- When replayed events go out: the stream drops a repeat within its deduplication window.


def due_at(result: ReplayResult, window_seconds: float | None, *, now: datetime) -> datetime | None:
    """Return when the last event goes out; None: at once, or unknown as ``window_seconds``."""
    if result.last_published_at is None or window_seconds is None:
        return None
    over = result.last_published_at + timedelta(seconds=window_seconds)
    return over if over > now else None


def outlook(result: ReplayResult, window_seconds: float | None, *, now: datetime) -> list[str]:
    """Return sentences on when replayed events go out, and what becomes of them at the consumers."""
    if result.last_published_at is None:
        return [_AT_ONCE]
    when = _AT_ONCE
    if window_seconds is None:
        when += ", or once the deduplication window is over if the stream still knows the ID"
    elif due := due_at(result, window_seconds, now=now):
        when = (
            f"goes out: the last from {due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC on, "
            f"once the stream has forgotten the ID: its deduplication window is {window_seconds:g} s"
        )
    return [
        when,
        "at the consumers: one that has processed an event skips it, because its inbox knows the ID",
    ]
