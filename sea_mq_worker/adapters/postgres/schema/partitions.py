"""PostgresPartitions: an outbox in daily partitions; see ``ports.partitions.Partitions``."""

from collections.abc import Sequence

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.adapters.postgres.schema.migrations import check_version, owner_session
from sea_mq_worker.adapters.postgres.schema.schema_owner import check_owner
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.read_models import check_accountable
from sea_mq_worker.domain.schema_records import Partition
from sea_mq_worker.resources import resource_folder


class PostgresPartitions:
    """Makes and lists partitions; each method raises what ``translated`` raises."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use this pool."""
        self._pool = pool
        self._sql = load_queries("partitions")

    async def exist(self) -> bool:
        [row] = await fetch(self._pool, self._sql["exist"])
        return bool(row["exist"])

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Create the missing partitions; a single table needs no right."""
        if not await self.exist():
            return []
        return [row["name"] for row in await fetch(self._pool, self._sql["make"], days_ahead)]

    async def all(self) -> Sequence[Partition]:
        """List partitions, the oldest first, the default partition last."""
        return [Partition(**row) for row in await fetch(self._pool, self._sql["list"])]


def partitioning_script() -> str:
    """Return the SQL that divides the outbox; psql can also run it."""
    return (resource_folder("sql") / "partitions.sql").read_text(encoding="utf-8")


async def partition_outbox(dsn: str, *, schema: str, context: str, actor: str, reason: str) -> bool:
    """Divide the outbox into partitions, in one transaction with the audit record; False: it has partitions.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now, or others kept the table busy; nothing changed.
        ContractError: the server is too old, the user does not own the tables, they are another context's, or
            something is in the way.
    """
    check_accountable(actor, reason)
    sql = load_queries("partitions")
    async with owner_session(dsn, schema) as connection:
        await check_version(connection)
        await check_owner(connection, context)
        async with connection.transaction():
            if await connection.fetchval(sql["exist"]):
                return False
            try:
                await connection.execute(partitioning_script())
            except asyncpg.RaiseError as obstacle:
                raise ContractError(f"the outbox cannot be divided: {obstacle.args[0]}") from obstacle
            await connection.execute(sql["record"], actor, reason)
    return True
