"""Operators' changes of rows (Open Outbox, operator): end or discard events, close messages, resume a type.

Every change names who makes it and why. Its record in ``operator_actions`` says what was selected and how
much was changed, also when it was cut short. Each function takes a pool that was opened with
``OPERATOR_HINTS``, and raises what ``translated`` raises.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, Literal, TypeAlias
from uuid import UUID

import asyncpg

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.operators.records import ActionName, OutboxFilter
from sea_mq_worker.operators.tables import SQL
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.migrations import check_owner, check_version, owner_session
from sea_mq_worker.postgres.partitions import partitioning_script
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

# --- The record of a change.

ActionOutcome: TypeAlias = Literal["done", "refused", "failed"]


def check_accountable(actor: str, reason: str) -> None:
    """Require an actor and a reason; ValueError: one of them is blank."""
    if not (actor.strip() and reason.strip()):
        raise ValueError("a change needs an actor and a reason, for the audit")


def selection_of(which: OutboxFilter) -> str:
    """Return a filter as JSON for the audit; the limit and the page of a list are no part of it."""
    given = {name: value for name, value in asdict(which).items() if value is not None}
    return json.dumps({k: v for k, v in given.items() if k not in {"limit", "before_id"}}, default=str)


async def begin_action(
    pool: asyncpg.Pool, action: ActionName, selection: Mapping[str, Any], *, actor: str, reason: str
) -> int:
    """Open the record of an action; return its id."""
    check_accountable(actor, reason)
    args = actor, action, reason, json.dumps(selection, default=str)
    [row] = await fetch(pool, SQL["begin_action"].sql, *args)
    return int(row["id"])


async def finish_action(pool: asyncpg.Pool, action: int, outcome: ActionOutcome) -> None:
    await fetch(pool, SQL["finish_action"].sql, action, outcome)


@asynccontextmanager
async def recorded(
    pool: asyncpg.Pool, action: ActionName, selection: Mapping[str, Any], *, actor: str, reason: str
) -> AsyncIterator[int]:
    """Keep a record open for a block, and yield its number; close it as done or failed unless killed."""
    number = await begin_action(pool, action, selection, actor=actor, reason=reason)
    try:
        yield number
    except WorkerError:
        with suppress(WorkerError):
            await finish_action(pool, number, "failed")
        raise
    await finish_action(pool, number, "done")


# --- Changes; each returns the ids that it changed.


async def mark_dead(pool: asyncpg.Pool, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
    """Change events from PENDING to DEAD, by way of CLAIMED; one that a relay holds right now stays."""
    check_accountable(actor, reason)
    args = actor, "mark_dead", reason, json.dumps({"ids": [str(event_id) for event_id in ids]})
    with translated():
        async with pool.acquire() as connection, connection.transaction():
            action = await connection.fetchval(SQL["begin_action"].sql, *args)
            rows = await connection.fetch(SQL["make_due"].sql, ids)
            waiting = [row["id"] for row in rows]
            await connection.execute(SQL["claim_as_operator"].sql, waiting, actor)
            await connection.execute(SQL["mark_dead"].sql, waiting, f"ended by {actor}: {reason}", action)
    return frozenset(waiting)


async def discard(
    pool: asyncpg.Pool, ids: Sequence[UUID], *, selection: OutboxFilter, actor: str, reason: str
) -> frozenset[UUID]:
    """Delete DEAD events for good; the audit keeps all about them except their contents.

    One that was replayed meanwhile stays.
    """
    check_accountable(actor, reason)
    rows = await fetch(pool, SQL["discard"].sql, ids, actor, reason, selection_of(selection))
    return frozenset(row["id"] for row in rows)


async def close(pool: asyncpg.Pool, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
    """Close messages without an effect that no worker leases."""
    selection = {"ids": [str(message_id) for message_id in ids]}
    action = await begin_action(pool, "close", selection, actor=actor, reason=reason)
    rows = await fetch(pool, SQL["close_messages"].sql, ids, f"closed by {actor}: {reason}", action)
    return frozenset(row["message_id"] for row in rows)


async def resume(pool: asyncpg.Pool, event_type: str, *, actor: str, reason: str) -> int:
    """Record that workers shall end the slow pace of an event type (empty: of all); return its number."""
    async with recorded(pool, "resume", {"event_type": event_type}, actor=actor, reason=reason) as action:
        return action


async def enable_partitions(settings: Settings, *, actor: str, reason: str) -> bool:
    """Divide the outbox into daily partitions, in one transaction with the record; False: it has partitions.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now, or others kept the table busy; nothing changed.
        ContractError: the server is too old, the user does not own the tables, they are another context's, or
            something is in the way.
    """
    check_accountable(actor, reason)
    sql = load_queries("partitions")
    dsn = settings.database_url.get_secret_value()
    async with owner_session(dsn, settings.database_schema) as connection:
        await check_version(connection)
        await check_owner(connection, settings.context)
        async with connection.transaction():
            if await connection.fetchval(sql["exist"]):
                return False
            try:
                await connection.execute(partitioning_script())
            except asyncpg.RaiseError as obstacle:
                raise ContractError(f"the outbox cannot be divided: {obstacle.args[0]}") from obstacle
            await connection.execute(sql["record"], actor, reason)
    return True
