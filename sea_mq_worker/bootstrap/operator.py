"""What operators' commands use: no waiting, one connection each, closed when the command is done."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from sea_mq_worker.adapters.nats import topology
from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.dead_letters import NatsDeadLetters
from sea_mq_worker.adapters.nats.definitions import Definition, definitions
from sea_mq_worker.adapters.nats.facts import stream_facts
from sea_mq_worker.adapters.postgres.connection import OPERATOR_HINTS
from sea_mq_worker.adapters.postgres.migrations import Plan, check_version, migrate, plan
from sea_mq_worker.adapters.postgres.operations import PostgresOperations
from sea_mq_worker.adapters.postgres.replays import PostgresReplays
from sea_mq_worker.bootstrap.connections import open_nats, open_pool
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 3.0
"""Somebody waits in front of the terminal."""


async def migrate_schema(settings: Settings) -> Sequence[str]:
    """Apply the migrations that are missing; return their names."""
    return await migrate(settings.database_url.get_secret_value(), schema=settings.database_schema)


async def plan_migration(settings: Settings) -> Plan:
    """Tell which migrations are missing."""
    return await plan(settings.database_url.get_secret_value(), schema=settings.database_schema)


@asynccontextmanager
async def tables_pool(settings: Settings, *, purpose: str) -> AsyncIterator[asyncpg.Pool]:
    """Connect to the tables, without the hints that the worker gives the planner.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: its schema is not the worker's.
    """
    pool = await open_pool(settings, purpose=purpose, hints=OPERATOR_HINTS)
    try:
        await check_version(pool)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def operations(settings: Settings) -> AsyncIterator[PostgresOperations]:
    """Connect to the tables."""
    async with tables_pool(settings, purpose="operator") as pool:
        yield PostgresOperations(pool=pool)


@asynccontextmanager
async def replays(settings: Settings) -> AsyncIterator[PostgresReplays]:
    """Connect to the tables to put events back."""
    async with tables_pool(settings, purpose="operator") as pool:
        yield PostgresReplays(pool=pool)


@asynccontextmanager
async def broker(settings: Settings) -> AsyncIterator[NatsConnection]:
    """Connect to NATS."""
    connection = await open_nats(
        settings, purpose="operator", on_event=_ignore, connect_timeout_seconds=_CONNECT_SECONDS
    )
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def dead_letters(settings: Settings) -> AsyncIterator[NatsDeadLetters]:
    """Connect to the dead-letter stream.

    Raises:
        ContractError: there is none; the text names the command that creates it.
    """
    async with broker(settings) as connection:
        await stream_facts(connection, settings.dlq_stream)
        yield NatsDeadLetters(connection=connection, stream=settings.dlq_stream)


async def duplicate_window_seconds(settings: Settings) -> float:
    """Ask how long the stream that is published to remembers a message id."""
    async with broker(settings) as connection:
        return (await stream_facts(connection, settings.stream)).duplicate_window_seconds


def wanted_topology(settings: Settings) -> list[Definition]:
    """Read the definitions that the settings choose."""
    return definitions(
        settings.streams_folder or resource_folder("streams"),
        context=settings.context,
        replicas=settings.stream_replicas,
        max_bytes=settings.stream_max_bytes,
    )


async def check_topology(settings: Settings) -> list[topology.Difference]:
    """Compare streams and consumers with their definitions."""
    async with broker(settings) as connection:
        return await topology.check(connection, wanted_topology(settings))


async def apply_topology(settings: Settings) -> list[topology.Change]:
    """Create and update streams and consumers."""
    async with broker(settings) as connection:
        return await topology.apply(connection, wanted_topology(settings))


def _ignore(_event: str, _text: str) -> None:
    """A command tells what it does, not how its connection fares."""
