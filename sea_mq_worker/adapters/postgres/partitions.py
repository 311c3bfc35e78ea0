"""PostgresPartitions: an outbox in partitions of a day each; see ``ports.partitions.Partitions``."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition, or the table itself where it has none.

    Attributes:
        from_at: the first moment of its ids; None: it begins with the lowest one.
        until_at: the moment behind the last.
        is_default: holds the events that no other partition is for.
    """

    partition: str
    from_at: datetime | None
    until_at: datetime | None
    is_default: bool
    bytes: int


class PostgresPartitions:
    """Makes and lists partitions; each method raises what ``translated`` raises."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Ask by this pool."""
        self._pool = pool
        self._sql = load_queries("partitions", "exist", "make", "list", "record")

    async def exist(self) -> bool:
        """Tell whether the outbox has partitions."""
        [row] = await fetch(self._pool, self._sql["exist"])
        return bool(row["exist"])

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Make what is missing; a login that may not is refused only where there is something to do."""
        if not await self.exist():
            return []
        return [row["name"] for row in await fetch(self._pool, self._sql["make"], days_ahead)]

    async def all(self) -> Sequence[Partition]:
        """List them, the oldest first, the default partition last."""
        return [Partition(**row) for row in await fetch(self._pool, self._sql["list"])]
