"""PostgresOverview: queries of the worker's page, each at a small, bounded cost."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.read_models import DeadEvent, DeadReason, Overview

BY_INDEX: Mapping[str, str] = MappingProxyType(
    {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}
)
"""Settings for sessions that sample: the planner considers "open" and "unpublished" independent, and would
read millions of published events to find the few others. Without a sort, an order names the index to use."""

_ROWS_MAX = 10_000
"""Cap on the dead events and dead letters that are read."""
_REASONS_MAX = 5


class PostgresOverview:
    """Reads only; raises what ``translated`` raises."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``BY_INDEX``."""
        self._pool = pool
        self._sql = load_queries("page")

    async def overview(self, *, sessions: str) -> Overview:
        """Count reasons, and workers by the application name of a session that each keeps open."""
        rows = await fetch(self._pool, self._sql["overview"], _ROWS_MAX, _REASONS_MAX, sessions)
        reasons: dict[str, list[DeadReason]] = {"outbox": [], "inbox": []}
        workers = 0
        for row in rows:
            if row["kind"] == "workers":
                workers = row["count"]
            else:
                text = row["name"] or "no error is noted"
                reasons[row["kind"]].append(DeadReason(text=text, count=row["count"]))
        return Overview(reasons=reasons, workers=workers)

    async def dead_events(
        self, *, event_type: str | None, error: str | None, below: int | None, limit: int
    ) -> Sequence[DeadEvent]:
        args = (event_type, error, below, _ROWS_MAX, limit)
        return [DeadEvent(**row) for row in await fetch(self._pool, self._sql["dead_events"], *args)]
