"""What operators read from outbox, inbox and audit (Open Outbox, operator): rows, pages, depths and groups.

Each function takes a pool that was opened with ``OPERATOR_HINTS`` (those for samples: with ``BY_INDEX``), and
raises what ``translated`` raises.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import WorkerError
from sea_mq_worker.operators.records import (
    MARKED,
    NUMBERS,
    READ_MAX,
    ActionName,
    ConsumerState,
    DeadEvent,
    DeadReason,
    Depth,
    Group,
    InboxFilter,
    InboxRecord,
    OperatorAction,
    OutboxDetail,
    OutboxFilter,
    OutboxSummary,
    Overview,
    Page,
    Side,
)
from sea_mq_worker.postgres.migrations import check_owner, check_version
from sea_mq_worker.postgres.partitions import is_uuid7, min_id_at, timestamp_of
from sea_mq_worker.postgres.pool import OPERATOR_HINTS, fetch
from sea_mq_worker.postgres.queries import load_named, load_queries
from sea_mq_worker.settings import Settings

SQL = load_named("operators")
_DEPTH = load_queries("depth")

_OF_A_KEY_MAX = 2000
"""Cap on the ids that are read for a key; a key with more events fills a page quickly without them."""
_SAMPLED_MAX = 10_000
"""Cap on the dead events and dead letters that the page reads."""
_REASONS_MAX = 5
_TEXT_MAX = 2**31 - 1
"""Characters of a text: as many as PostgreSQL can count."""

BY_INDEX: Mapping[str, str] = MappingProxyType(
    {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}
)
"""Settings for sessions that sample: the planner considers "open" and "unpublished" independent, and would
read millions of published events to find the few others. Without a sort, an order names the index to use."""


@asynccontextmanager
async def open_tables(settings: Settings, *, purpose: str = "operator") -> AsyncIterator[asyncpg.Pool]:
    """Connect to the tables, without the planner hints of the worker.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: the schema has another version, or belongs to another context.
    """
    pool = await open_pool(settings, purpose=purpose, hints=OPERATOR_HINTS)
    try:
        await check_version(pool)
        await check_owner(pool, settings.context)
        yield pool
    finally:
        await pool.close()


# --- Rows, and pages of rows, the latest first.
#
# A page reads at most ``read_max`` rows (None: no limit), unless an index holds few rows besides those that
# match. Unfinished rows have an index on their time; finished rows have only the primary key. So a page that
# includes finished rows is ordered by id if ids contain their time (UUIDv7), and ``since`` and ``until`` then
# bound the time in the id. If ids contain no time, the whole table is read.

_RowT = TypeVar("_RowT", OutboxSummary, InboxRecord)

_LISTED: Mapping[Side, tuple[str, str, str]] = MappingProxyType(
    {"outbox": ("event", "id", "occurred_at"), "inbox": ("message", "message_id", "received_at")}
)
"""The word for a row, and its columns of id and time."""


class RowGoneError(WorkerError):
    """The row after which a page was to begin does not exist."""


async def outbox_page(
    pool: asyncpg.Pool, which: OutboxFilter, *, read_max: int | None = READ_MAX
) -> Page[OutboxSummary]:
    """Return a page of events; RowGoneError: the event ``which.before_id`` does not exist."""
    if which.ordering_key is not None and which.ids is None and not which.finished:
        # Select the unfinished events of a key by the ids in its indexes, unless they are many.
        found = await fetch(pool, *SQL["unfinished_of_key"].bind(which, limit=_OF_A_KEY_MAX + 1))
        if len(found) <= _OF_A_KEY_MAX:
            which = replace(which, ids=tuple(row["id"] for row in found))
    return await _page(pool, "outbox", OutboxSummary, which, read_max)


async def inbox_page(
    pool: asyncpg.Pool, which: InboxFilter, *, read_max: int | None = READ_MAX
) -> Page[InboxRecord]:
    """Return a page of messages; RowGoneError: the message ``which.before_id`` does not exist."""
    return await _page(pool, "inbox", InboxRecord, which, read_max)


async def show_outbox(
    pool: asyncpg.Pool, event_id: UUID, *, content_max: int = _TEXT_MAX
) -> OutboxDetail | None:
    """Return all columns of an event; None: there is no such event.

    ``content_max``: most characters of payload, headers and metadata each; a few hundred stored bytes can be
    a text of a gigabyte.
    """
    rows = await fetch(pool, *SQL["show_outbox"].bind(id=event_id, content_max=content_max))
    return OutboxDetail(**rows[0]) if rows else None


async def show_inbox(pool: asyncpg.Pool, message_id: UUID) -> InboxRecord | None:
    """Return the record of a message; None: it was never received, or its row was pruned."""
    return next(iter((await inbox_page(pool, InboxFilter(ids=(message_id,)))).rows), None)


async def _page(
    pool: asyncpg.Pool,
    side: Side,
    record: type[_RowT],
    which: OutboxFilter | InboxFilter,
    read_max: int | None,
) -> Page[_RowT]:
    name, id_column, time_column = _LISTED[side]
    by_id = False
    if which.finished and not which.by_index:
        [highest] = await fetch(pool, *SQL["highest_ids"].bind())
        by_id = highest[side] is not None and is_uuid7(highest[side])
    if which.by_index or (which.finished and not by_id):
        read_max = None
    if by_id:
        first, below = id_bounds(which.since, which.until, which.before_id)
        bound = SQL[f"list_{side}_by_id"].bind(which, first_id=first, below_id=below, read_max=read_max)
    else:
        bound = SQL[f"list_{side}"].bind(which, read_max=read_max)
    found = await fetch(pool, *bound)
    if which.before_id and not found and not by_id:
        show = show_outbox if side == "outbox" else show_inbox
        if await show(pool, which.before_id) is None:
            text = f"there is no {name} {which.before_id} (any more): begin again without --after"
            raise RowGoneError(text)
    # Column ``fits`` is true for rows of the list. The last row may be the one at which reading ended: its
    # ``place`` is the number of rows read.
    rows = [
        record(**{column: value for column, value in row.items() if column not in {"fits", "place"}})
        for row in found
        if row["fits"]
    ]
    if len(rows) == which.limit:
        return Page(rows=rows, next_after=found[-1][id_column] if found else None)
    if read_max and found and found[-1]["place"] == read_max:
        last_id = found[-1][id_column]
        reached = timestamp_of(last_id) if by_id else found[-1][time_column]
        return Page(rows=rows, next_after=last_id, read=read_max, reached=reached)
    return Page(rows=rows, next_after=None)


def id_bounds(
    since: datetime | None, until: datetime | None, before_id: UUID | None
) -> tuple[UUID | None, UUID | None]:
    """Return the inclusive lower and the exclusive upper bound of a page's ids; None: no bound."""
    above = [one for one in (min_id_at(until) if until else None, before_id) if one]
    return min_id_at(since) if since else None, min(above, default=None)


# --- Depth, groups, and what the page samples.


async def depth(pool: asyncpg.Pool, side: Side, *, limit: int | None = None) -> Depth:
    """Return the exact depth (QRY-050, QRY-051), or numbers capped at ``limit`` at a constant cost."""
    if limit is None:
        [row] = await fetch(pool, _DEPTH[f"{side}_depth"])
    else:
        [row] = await fetch(pool, SQL[f"{side}_depth_capped"].sql, limit)
    return Depth(**dict(row) | {"waiting_seconds": max(0.0, row["waiting_seconds"] or 0.0)})


async def without_read_ahead(pool: asyncpg.Pool, consumer: ConsumerState, *, limit: int) -> ConsumerState:
    """Leave out messages that the inbox has before their delivery, and counts; at most ``limit``."""
    if not consumer.pending:
        return consumer
    args = consumer.stream, consumer.durable, consumer.delivered_seq, limit, consumer.oldest_id or None
    [row] = await fetch(pool, SQL["read_ahead"].sql, *args)
    pending = max(0, consumer.pending - row["count"])
    # If the inbox has the oldest, the worker reads ahead, and it does not wait.
    oldest_seconds = None if row["has_oldest"] or not pending else consumer.oldest_seconds
    return replace(consumer, pending=pending, oldest_seconds=oldest_seconds)


async def summary(pool: asyncpg.Pool, side: Side, *, read_max: int, groups_max: int) -> Sequence[Group]:
    """Group the oldest ``read_max`` unfinished events or messages, the largest groups of each kind first."""
    rows = await fetch(pool, SQL[f"{side}_summary"].sql, read_max, groups_max, NUMBERS, MARKED)
    return [Group(**row) for row in rows]


async def overview(pool: asyncpg.Pool, *, sessions: str) -> Overview:
    """Count reasons, and workers by the application name of a session that each keeps open."""
    reasons: dict[str, list[DeadReason]] = {"outbox": [], "inbox": []}
    workers = 0
    for row in await fetch(pool, SQL["overview"].sql, _SAMPLED_MAX, _REASONS_MAX, sessions):
        if row["kind"] == "workers":
            workers = row["count"]
        else:
            text = row["name"] or "no error is noted"
            reasons[row["kind"]].append(DeadReason(text=text, count=row["count"]))
    return Overview(reasons=reasons, workers=workers)


async def dead_events(
    pool: asyncpg.Pool, *, event_type: str | None, error: str | None, below: int | None, limit: int
) -> Sequence[DeadEvent]:
    """Return DEAD events with a ``seq`` below one, the latest first; at a constant cost."""
    rows = await fetch(pool, SQL["dead_events"].sql, event_type, error, below, _SAMPLED_MAX, limit)
    return [DeadEvent(**row) for row in rows]


# --- The audit.


async def audit(
    pool: asyncpg.Pool,
    *,
    limit: int,
    actor_like: str | None = None,
    action: ActionName | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before_id: int | None = None,
) -> Sequence[OperatorAction]:
    """Return operators' actions, the latest first; ``actor_like`` is a part of the actor, in any case."""
    filters: dict[str, Any] = {"actor_like": actor_like, "action": action, "since": since, "until": until}
    bound = SQL["audit"].bind(**filters, before_id=before_id, limit=limit)
    return [OperatorAction(**row) for row in await fetch(pool, *bound)]
