"""Connections to PostgreSQL."""

from collections.abc import Mapping

import asyncpg

from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS, Join, connect_pool
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 10.0


async def open_pool(
    settings: Settings, *, purpose: str, hints: Mapping[str, str] = WORKER_HINTS, join: Join | None = None
) -> asyncpg.Pool:
    """Connect to PostgreSQL; pg_stat_activity shows ``purpose``. ``join`` gets each new connection."""
    return await connect_pool(
        settings.database_url.get_secret_value(),
        schema=settings.database_schema,
        size_max=settings.database_pool_max,
        application_name=f"sea_mq_worker {purpose}",
        statement_timeout_seconds=settings.database_timeout_seconds,
        connect_timeout_seconds=_CONNECT_SECONDS,
        hints=hints,
        pooler=settings.database_pooler,
        join=join,
    )
