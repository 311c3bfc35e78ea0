"""Statements of a worker held exactly where a test wants them, with no hook in the worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from tests.support.servers import database_connection
from tests.support.waiting import eventually

_LOCK = 470_047
_WAITING = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@dataclass(frozen=True, slots=True)
class Hold:
    """Statements wait inside a trigger while this holds; each row of theirs waits by itself."""

    _connection: asyncpg.Connection

    async def reached(self, *, within: float = 15.0) -> None:
        """Wait until a statement is held."""
        await eventually(
            lambda: self._connection.fetchval(_WAITING, _LOCK), within=within, what="a statement is held"
        )

    async def on_done(self) -> None:
        """Release the held calls, and hold no more."""
        await self._connection.execute("SELECT pg_advisory_unlock_all()")


@asynccontextmanager
async def held(dsn: str, *, table: str, event: str, when: str = "true") -> AsyncIterator[Hold]:
    """Hold every row that an ``event`` (INSERT or UPDATE OF column) of ``table`` touches ``when`` it is so.

    ``when`` speaks of NEW and, in an update, of OLD. The trigger goes with the block, which waits for every
    statement on the table: end no block while a session's process is frozen.
    """
    async with database_connection(dsn) as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        await connection.execute(
            "CREATE FUNCTION test_hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" PERFORM pg_advisory_xact_lock_shared({_LOCK}); RETURN NEW; END $$"
        )
        await connection.execute(
            f"CREATE TRIGGER a_test_hold BEFORE {event} ON {table}"
            f" FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION test_hold()"
        )
        hold = Hold(connection)
        yield hold
        await hold.on_done()
        await connection.execute(f"DROP TRIGGER a_test_hold ON {table}")
        await connection.execute("DROP FUNCTION test_hold()")
