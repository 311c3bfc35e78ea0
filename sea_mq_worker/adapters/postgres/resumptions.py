"""PostgresResumptions: `inbox resume`, as the audit has it, which every worker can read."""

from collections.abc import Sequence

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries


class PostgresResumptions:
    """See ``ports.inbox.Resumptions``; ``sql/roles.sql`` grants the worker the few columns that it reads."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool of the worker's."""
        self._pool = pool
        self._sql = load_queries("resume", "resumed")

    async def resumed(self, *, within_seconds: float) -> Sequence[tuple[str, float]]:
        """Read what was resumed so lately."""
        rows = await fetch(self._pool, self._sql["resumed"], within_seconds)
        return [(row["event_type"], row["seconds_ago"]) for row in rows]
