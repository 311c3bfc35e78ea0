"""Which durables are consumed with these tables, and for which handler."""

from collections.abc import Sequence

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.consumption import Consumption

_SEEN_SECONDS = 150.0
"""A worker that has not said for so long what it consumes is gone."""


class PostgresConsumptions:
    """Who consumes what with these tables; see ``domain.consumption``.

    Raises, of both methods:
        StoreUnavailableError: PostgreSQL cannot serve now.
        ContractError: a privilege is missing.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("consumers", "others", "consume", "leave")

    async def others(self, handler: str) -> Sequence[Consumption]:
        """Return what workers with another handler consume."""
        rows = await fetch(self._pool, self._sql["others"], handler, _SEEN_SECONDS)
        return [Consumption(**dict(row) | {"subjects": tuple(row["subjects"])}) for row in rows]

    async def say(self, own: Sequence[Consumption]) -> None:
        """Say that this is consumed; for ``_SEEN_SECONDS`` others believe it."""
        for one in own:
            await fetch(
                self._pool, self._sql["consume"], one.stream, one.durable, one.handler, list(one.subjects)
            )

    async def leave(self, own: Sequence[Consumption]) -> None:
        """Say that this is not consumed any more, as far as this worker knows."""
        handlers = {one.handler for one in own}
        streams, durables = [one.stream for one in own], [one.durable for one in own]
        for handler in handlers:
            await fetch(self._pool, self._sql["leave"], streams, durables, handler)
