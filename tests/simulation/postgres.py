"""A real PostgreSQL in a simulation: the statements of ``sql/`` run in it, at the simulation's time.

Virtual time stands still while a statement runs. Functions of the schema replace ``now()`` and the other
clocks: they read ``simulation.now``, a setting of the session. The search path names the schema before
``pg_catalog``, so statements, defaults and triggers find these functions first.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from sea_mq_worker.inbox.message import InboxMessage
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.pool import WORKER_HINTS, session_settings
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.inbox import InboxRow
from sea_mq_worker.testing.outbox import OutboxRow
from tests.simulation.plan import Row
from tests.simulation.servers import Servers
from tests.support import servers as test_servers
from tests.support.servers import PostgresAddress

T = TypeVar("T")

Table: TypeAlias = Literal["outbox", "inbox"]

_STATEMENT_SECONDS = 2
"""Real seconds: the server ends a statement that waits for a lock which only virtual time would free."""

_CLOCK = "".join(
    f"CREATE FUNCTION {name}() RETURNS timestamptz LANGUAGE sql STABLE"
    " AS $$ SELECT pg_catalog.current_setting('simulation.now')::timestamptz $$;"
    for name in ("now", "clock_timestamp", "statement_timestamp", "transaction_timestamp")
)

_EMPTY = """
SET session_replication_role = replica;
TRUNCATE outbox_events, inbox_messages, operator_actions RESTART IDENTITY;
RESET session_replication_role;
"""

_INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, available_at, ordering_key)
VALUES ($1::uuid, $2, $3, $4, $5::text::jsonb, $6, $7)
RETURNING seq
"""
_LOCK_ONE = "SELECT FROM outbox_events WHERE state = 'PENDING' ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED"

_ROWS = {
    "outbox": """
SELECT id::text AS id, seq, event_type, convert_to(payload::text, 'UTF8') AS payload, created_at,
       available_at, ordering_key, aggregate_type, aggregate_id, state, publish_attempts AS attempts,
       failures, first_attempt_at, claimed_at, claimed_by, published_at, publish_error AS error,
       coalesce(stream, '') AS stream, coalesce(stream_seq, 0) AS stream_seq
  FROM outbox_events ORDER BY seq""",
    "inbox": """
SELECT message_id::text AS message_id, subject, consumer, stream, stream_seq, content_hash, received_at,
       attempts, last_error, processed_at, locked_until, locked_by, coalesce(reply, '') AS reply,
       dead_letter_reason, dead_letter_begun_at, dead_lettered_at
  FROM inbox_messages ORDER BY received_at, message_id""",
}


class Postgres:
    """A database of its own, and a thread with the event loop of its connections.

    Args:
        address: of a server; None: an embedded one.
    """

    def __init__(self, address: PostgresAddress | None = None) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres", daemon=True)
        self._stack = AsyncExitStack()
        self.now = EPOCH
        self.open: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait_for(self.empty())
        self.wait_for(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and block until it ends."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def empty(self) -> None:
        """Roll back what is open, and forget all rows."""
        for first in list(self.open):
            await self.end(first, "rollback")
        async with self.pool.acquire() as connection:
            await connection.execute(_EMPTY)

    async def end(self, first: str, how: str) -> None:
        """Commit or roll back the transaction that is open since an event was inserted."""
        connection = self.open.pop(first)
        await connection.execute(how)
        await self.pool.release(connection)

    async def _open(self) -> None:
        address = self._address
        if address is None:
            address = await self._stack.enter_async_context(test_servers.postgres(containers=False))
        database = await self._stack.enter_async_context(
            test_servers.scratch_database(address, prefix="simulated_")
        )
        settings = session_settings("public", "simulation") | dict(WORKER_HINTS)
        self.pool = await asyncpg.create_pool(
            database.dsn,
            min_size=1,
            max_size=20,
            setup=self._set_time,
            reset=_keep_as_is,
            server_settings=settings
            | {"search_path": "public, pg_catalog", "statement_timeout": f"{_STATEMENT_SECONDS}s"},
        )
        self._stack.push_async_callback(self.pool.close)
        async with self.pool.acquire() as connection:
            await connection.execute(_CLOCK)
            for script in sorted((resource_folder("sql") / "migrations").glob("*.sql")):
                await connection.execute(script.read_text(encoding="utf-8"))

    async def _set_time(self, connection: Any) -> None:
        """Set the time before each use of a connection; ``random()`` depends on the time alone."""
        part = self.now.microsecond / 1_000_000
        await connection.execute(f"SET simulation.now = '{self.now.isoformat()}'; SELECT setseed({part})")


class PostgresServers(Servers):
    """Servers with outbox and inbox in PostgreSQL; the tables of the in-memory fakes mirror its rows."""

    def __init__(self, postgres: Postgres, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.postgres = postgres
        self._wait_for(postgres.empty())

    def database_clock(self) -> float:
        """Tell the time as precisely as PostgreSQL can."""
        return round(super().database_clock(), 6)

    def run(self, table: Table, statement: str, args: Sequence[object]) -> Any:
        """Run a statement and read the table after it; return the rows of the statement, or its error."""
        try:
            answer, rows = self._wait_for(self._run(statement, args, _ROWS[table]))
        except asyncpg.PostgresError as error:
            return error
        self._show(table, rows)
        return answer

    def begin(self, rows: tuple[Row, ...]) -> list[OutboxRow]:
        """Insert rows in a transaction that stays open; it also locks the first event that waits."""
        made = super().begin(rows)
        self._wait_for(self._begin(made))
        return made

    def commit(self, rows: tuple[Row, ...], made: list[OutboxRow]) -> None:
        super().commit(rows, made)
        self._wait_for(self.postgres.end(made[0].id, "commit"))
        self.run("outbox", "SELECT", ())

    def roll_back(self, made: list[OutboxRow]) -> None:
        super().roll_back(made)
        self._wait_for(self.postgres.end(made[0].id, "rollback"))

    def replay(self, event_id: str) -> None:
        which = OutboxFilter(states=(EventState.PUBLISHED, EventState.DEAD), ids=(UUID(event_id),))
        pool = self.postgres.pool
        self._wait_for(replay_matching(pool, which, actor="ada", reason="mended", cap=1))
        self.run("outbox", "SELECT", ())

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        self.postgres.now = EPOCH + timedelta(seconds=self.database_clock())
        return self.postgres.wait_for(work)

    async def _run(self, statement: str, args: Sequence[object], look: str) -> tuple[Any, Any]:
        async with self.postgres.pool.acquire() as connection:
            return await connection.fetch(statement, *args), await connection.fetch(look)

    async def _begin(self, made: list[OutboxRow]) -> None:
        connection = await self.postgres.pool.acquire()
        await connection.execute(f"BEGIN; {_LOCK_ONE}")
        for row in made:
            due = EPOCH + timedelta(seconds=row.available_at)
            row.seq = await connection.fetchval(
                _INSERT,
                *(row.id, row.aggregate_type, row.aggregate_id, row.event_type, row.payload.decode()),
                *(due, row.ordering_key),
            )
        self.postgres.open[made[0].id] = connection

    def _show(self, table: Table, rows: Sequence[Any]) -> None:
        if table == "outbox":
            self.outbox.rows = {row["id"]: OutboxRow(**_on_clock(row)) for row in rows}
        else:
            self.inbox.rows = {row["message_id"]: _inbox_row(_on_clock(row)) for row in rows}


def _on_clock(row: Any) -> dict[str, Any]:
    """Return the values of a row with its times in seconds, as the in-memory fakes have them."""
    return {
        name: (value - EPOCH) / timedelta(seconds=1) if isinstance(value, datetime) else value
        for name, value in row.items()
    } | ({"state": EventState(row["state"])} if "state" in row else {})


def _inbox_row(values: dict[str, Any]) -> InboxRow:
    entry = InboxMessage(
        **{name: values.pop(name) for name in InboxMessage._fields if name != "content_hash"},
        content_hash=values["content_hash"],
    )
    return InboxRow(entry=entry, **values)


async def _keep_as_is(_: Any) -> None:
    """Save the round trip of a reset: each use of a connection sets the time again."""
