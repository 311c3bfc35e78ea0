"""PostgresWorkerSession: a worker's life as PostgreSQL sees it, by an advisory lock.

Every connection of the worker holds the same advisory lock, shared: those of its pools, and one that is there
for nothing else. A worker that is killed loses all its connections at once, and with the last of them the
lock. Whoever gets that lock exclusively therefore knows three things: the worker has ended, none of its
statements still runs, and while the lock is held exclusively no connection of it can do anything.

    worker A                     lock of A            worker B
      |  connect, lock           shared A A A           |  others: refused, A lives
      |  one connection is lost  shared A A             |  others: refused, A lives
      |  kill -9                 (free)                 |  others: free, A may be gone
                                 (free)                 |  others: free again, A is gone
                                 EXCLUSIVE B            |  take_over: A's leases end

A free lock proves nothing on a server that never had it: after a restart or a promotion all locks are free.
So a session counts only once its row is in ``sea_mq_sessions``, an unlogged table, which a crash or a
promotion empties, and only while the server has not been started again since.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import session_settings
from sea_mq_worker.adapters.postgres.direct import close_in_time, connect_direct
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError, UnavailableError, WorkerError
from sea_mq_worker.ports.sessions import OtherSession

_LOCK = "SELECT pg_advisory_lock_shared(7184, $1)"
_CHANNEL = "SELECT 'sea_mq_sessions.' || hashtext(current_schema()::text)::text"
_IS_PRIMARY = "SELECT current_setting('transaction_read_only') = 'off'"
_HEARTBEAT_SECONDS = 30.0
_CHECK_SECONDS = 1.0
"""Interval at which the connection is checked: the driver does not report every end of a connection."""
_RECONNECT_SECONDS = 0.05
"""Delay after the first failed reconnection. The first reconnection is immediate: others may conclude from a
free lock that this worker has ended."""
_RECONNECT_MAX_SECONDS = 5.0
_NEVER = float("-inf")


class PostgresWorkerSession:
    """Holds the lock of this worker, and sees those of others; see ``ports.sessions.WorkerSessions``."""

    def __init__(
        self,
        *,
        dsn: str,
        schema: str,
        worker: str,
        sides: Sequence[str],
        silent_seconds: float,
        on_event: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a session, without a query yet.

        Args:
            dsn: a direct connection to the server.
            schema: of the tables.
            worker: name of the worker, for people.
            sides: sides whose leases end with the session.
            silent_seconds: the server ends a silent session no sooner; at least the longest lease, so that
                leases decide about a worker that is cut off.
            on_event: called with the key and the text of what operators should know.
            clock: monotonic seconds.
        """
        self.id = secrets.token_hex(4)
        self._key = int.from_bytes(bytes.fromhex(self.id), signed=True)
        self._dsn = dsn
        self._settings = session_settings(schema, "sea_mq_worker session") | _keepalive(silent_seconds)
        self._worker = worker
        self._sides = list(sides)
        self._on_event = on_event
        self._clock = clock
        self._refusal = ""
        self._sql = load_queries("sessions", "begin", "others", "forget")
        self._connection: asyncpg.Connection | None = None
        self._lost_at = _NEVER
        self._change = asyncio.Event()
        self._turn = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin the session; returns when the lock is held, or when the first try has failed."""
        first_try: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(first_try))
        await first_try

    async def close(self) -> None:
        """End the connection. The session's row stays: another worker finds nothing to take over."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def join(self, connection: asyncpg.Connection) -> None:
        """Let a connection of a pool hold the lock, too, before it is used."""
        await connection.fetchval(_LOCK, self._key)
        connection.add_termination_listener(self._joined_lost)

    def lost_since(self, moment: float) -> bool:
        """Return whether others may have taken this worker for gone since ``moment``."""
        return self._lost_at >= moment

    async def others(self) -> Sequence[OtherSession]:
        """Try the lock of each other session; the lost connection of this one makes it an error."""
        return [OtherSession(**row) for row in await self._fetch("others", self.id)]

    async def forget(self, session: OtherSession) -> None:
        """Delete the row of one side, unless its worker holds the lock again."""
        await self._fetch("forget", session.session, session.side)

    async def wait_for_change(self, *, timeout_seconds: float) -> None:
        """Wait for the notification of a session that begins."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._change.wait()
        self._change.clear()

    async def _fetch(self, statement: str, *args: object) -> Sequence[Any]:
        connection = self._connection
        if connection is None:
            raise StoreUnavailableError("the worker's session in PostgreSQL is interrupted")
        try:
            with translated():
                async with self._turn:
                    return list(await connection.fetch(self._sql[statement], *args))
        except UnavailableError:
            connection.terminate()  # a session that does not answer proves nothing
            raise

    async def _keep(self, first_try: asyncio.Future[None]) -> None:
        delay_seconds = 0.0
        while True:
            try:
                with translated():
                    await self._hold(first_try)
                delay_seconds = 0.0
            except (UnavailableError, ContractError) as error:
                self._report_refusal(error)
                delay_seconds = min(max(2 * delay_seconds, _RECONNECT_SECONDS), _RECONNECT_MAX_SECONDS)
            if not first_try.done():
                first_try.set_result(None)
            await asyncio.sleep(delay_seconds)

    async def _hold(self, first_try: asyncio.Future[None]) -> None:
        """Hold the lock until the connection is lost.

        Raises:
            StoreUnavailableError: PostgreSQL cannot be reached.
            ContractError: this is no direct connection, or the worker may not use the table.
        """
        connection = await connect_direct(self._dsn, self._settings)
        try:
            await connection.fetchval(_LOCK, self._key)
            await connection.add_listener(await connection.fetchval(_CHANNEL), lambda *_: self._change.set())
            await connection.fetch(self._sql["begin"], self.id, self._sides, self._worker)
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            self._connection = connection
            self._change.set()
            if not first_try.done():
                first_try.set_result(None)
            await self._until_lost(connection, lost)
        finally:
            if self._connection is not None:
                self._connection, self._lost_at = None, self._clock()
                if self._keeper is not None:  # else the worker stops
                    self._on_event("session_lost", "a new one is opened; until then leases end by their time")
            await close_in_time(connection)

    async def _until_lost(self, connection: asyncpg.Connection, lost: asyncio.Event) -> None:
        """Beat: a connection that is cut off says nothing by itself, nor does one to a former primary."""
        beat_at = self._clock() + _HEARTBEAT_SECONDS
        while not (lost.is_set() or connection.is_closed()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await lost.wait()
            if self._clock() >= beat_at:
                beat_at = self._clock() + _HEARTBEAT_SECONDS
                async with self._turn:
                    if not await connection.fetchval(_IS_PRIMARY):
                        return

    def _report_refusal(self, error: WorkerError) -> None:
        """Report once why this worker can have no session; an outage is reported by those who work."""
        if isinstance(error, ContractError) and str(error) != self._refusal:
            self._refusal = str(error)
            self._on_event("session_refused", f"{error}; leases end by their time alone")

    def _joined_lost(self, _: object) -> None:
        """Note the end of a pool's connection: it may have been the last one while the own one is lost."""
        if self._connection is None:
            self._lost_at = self._clock()


def _keepalive(silent_seconds: float) -> dict[str, str]:
    seconds = int(silent_seconds) + 1
    return {"tcp_keepalives_idle": str(seconds), "tcp_user_timeout": str(1000 * (seconds + 30))}
