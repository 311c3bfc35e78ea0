"""Connects operators' commands to PostgreSQL."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg

from sea_mq_worker.connections import open_pool
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.tables import PostgresOperations, PostgresReplays
from sea_mq_worker.postgres.migrations import (
    MigrationPlan,
    check_owner,
    check_version,
    migrate,
    plan,
    set_old_worker,
)
from sea_mq_worker.postgres.partitions import PostgresPartitions, partition_outbox, partitioning_script
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.settings import Settings

Tables: TypeAlias = PostgresOperations
"""Outbox and inbox, as commands query and change them."""


async def migrate_schema(settings: Settings) -> Sequence[str]:
    """Apply the missing migrations; return their names."""
    return await migrate(settings.database_url.get_secret_value(), schema=settings.database_schema)


async def plan_migration(settings: Settings) -> MigrationPlan:
    """Return the missing migrations, without applying them."""
    return await plan(settings.database_url.get_secret_value(), schema=settings.database_schema)


async def set_old_worker_beside(settings: Settings, *, beside: bool) -> None:
    """Accept the statements of SDS-047's own worker, or accept them no longer."""
    await set_old_worker(
        settings.database_url.get_secret_value(), schema=settings.database_schema, beside=beside
    )


async def enable_partitions(settings: Settings, *, actor: str, reason: str) -> bool:
    """Divide the outbox into daily partitions; False: it has partitions already."""
    return await partition_outbox(
        settings.database_url.get_secret_value(),
        schema=settings.database_schema,
        context=settings.context,
        actor=actor,
        reason=reason,
    )


def partitioning_sql() -> str:
    """Return the SQL by which ``enable_partitions`` divides the outbox; psql runs it, too."""
    return partitioning_script()


@asynccontextmanager
async def tables_pool(settings: Settings, *, purpose: str) -> AsyncIterator[asyncpg.Pool]:
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


@asynccontextmanager
async def operations(settings: Settings) -> AsyncIterator[Tables]:
    async with tables_pool(settings, purpose="operator") as pool:
        yield PostgresOperations(pool=pool)


@asynccontextmanager
async def replays(settings: Settings) -> AsyncIterator[PostgresReplays]:
    async with tables_pool(settings, purpose="operator") as pool:
        yield PostgresReplays(pool=pool, hold_dead_keys=settings.outbox_dead_key == "hold")


@asynccontextmanager
async def inbox(settings: Settings, *, worker: str) -> AsyncIterator[PostgresInboxAdapter]:
    """Connect to the inbox like a worker; tokens of its leases contain ``worker``."""
    pool = await open_pool(settings, purpose="redrive")
    try:
        yield PostgresInboxAdapter(pool=pool, worker=worker)
    finally:
        await pool.close()


@asynccontextmanager
async def partitions(settings: Settings) -> AsyncIterator[PostgresPartitions]:
    async with tables_pool(settings, purpose="operator") as pool:
        yield PostgresPartitions(pool=pool)
