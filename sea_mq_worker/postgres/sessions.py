"""What belongs to a session of PostgreSQL: a connection that is kept, and by it the life of a worker.

Every connection of a worker holds the same advisory lock, shared: those of its pools, and one that is there
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncpg

from sea_mq_worker.errors import ContractError, StoreUnavailableError, UnavailableError
from sea_mq_worker.ports import OtherSession
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import connect, session_settings
from sea_mq_worker.postgres.queries import load_queries

# --- One connection direct to the primary, opened again whenever it is lost.

_STATEMENT_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
_HEARTBEAT_SECONDS = 30.0
_CHECK_SECONDS = 1.0
"""Interval at which the connection is checked: the driver does not report every end of a connection."""
_RETRY_SECONDS = 0.05
"""Shortest delay after a failed attempt."""
_IS_PRIMARY = "SELECT current_setting('transaction_read_only') = 'off'"


@dataclass(slots=True, kw_only=True, repr=False)
class KeptConnection:
    """Keeps a connection for what belongs to its session: LISTEN and locks.

    Attributes:
        on_open: prepares each new connection, before it becomes ``current``.
        on_held: called when the connection is ``current``.
        on_lost: called when it is so no more, also by ``close``.
        on_failed: called with the error of each failed attempt.
        pause_seconds: delay before a lost connection is replaced; it doubles after each failure.
        current: the connection; None while there is none.
        turn: held by whoever uses the connection.
    """

    dsn: str
    settings: Mapping[str, str]
    on_open: Callable[[asyncpg.Connection], Awaitable[None]]
    on_held: Callable[[], None]
    on_lost: Callable[[], None]
    on_failed: Callable[[UnavailableError | ContractError], None] = lambda _: None
    pause_seconds: float
    pause_max_seconds: float
    current: asyncpg.Connection | None = field(default=None, init=False)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called, or ``start`` was not."""
        return self._keeper is None

    async def start(self) -> None:
        """Begin to connect; returns when the connection is held, or when the first attempt has failed."""
        first_attempt = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(first_attempt))
        await first_attempt.wait()

    async def close(self) -> None:
        """End the connection for good; safe twice."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep(self, first_attempt: asyncio.Event) -> None:
        pause_seconds = self.pause_seconds
        while True:
            try:
                with translated():
                    await self._hold(first_attempt)
                pause_seconds = self.pause_seconds
            except (UnavailableError, ContractError) as error:
                self.on_failed(error)
                pause_seconds = min(max(2 * pause_seconds, _RETRY_SECONDS), self.pause_max_seconds)
            first_attempt.set()
            await asyncio.sleep(pause_seconds)

    async def _hold(self, first_attempt: asyncio.Event) -> None:
        """Hold a connection until it is lost; a proxy in between may give its session to others."""
        connection = await connect(self.dsn, self.settings, statement_seconds=_STATEMENT_SECONDS)
        try:
            if await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid():
                raise ContractError(
                    "LISTEN and locks need a direct connection, and this one leads through a proxy"
                )
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await self.on_open(connection)
            self.current = connection
            self.on_held()
            first_attempt.set()
            await self._until_lost(connection, lost)
        finally:
            if self.current is not None:
                self.current = None
                self.on_lost()
            try:
                await connection.close(timeout=_CLOSE_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()  # it is lost already, or cut off

    async def _until_lost(self, connection: asyncpg.Connection, lost: asyncio.Event) -> None:
        """Beat: a connection that is cut off says nothing by itself, nor does one to a former primary."""
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + _HEARTBEAT_SECONDS
        while not (lost.is_set() or connection.is_closed()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await lost.wait()
            if loop.time() >= beat_at:
                beat_at = loop.time() + _HEARTBEAT_SECONDS
                async with self.turn:
                    if not await connection.fetchval(_IS_PRIMARY):
                        return


# --- The session of this worker, and those of others.

_LOCK = "SELECT pg_advisory_lock_shared(7184, $1)"
_CHANNEL = "SELECT 'sea_mq_sessions.' || hashtext(current_schema()::text)::text"
_RECONNECT_SECONDS = 0.0
"""The first reconnection is immediate: others may conclude from a free lock that this worker has ended."""
_RECONNECT_MAX_SECONDS = 5.0


@dataclass(kw_only=True, eq=False, repr=False)
class PostgresWorkerSession:
    """Holds the lock of this worker, and sees those of others; see ``ports.WorkerSessions``.

    Attributes:
        worker: name of the worker, for people.
        sides: sides whose leases end with the session.
        silent_seconds: the server ends a silent session no sooner; at least the longest lease, so that leases
            decide about a worker that is cut off.
        on_event: called with the key and the text of what operators should know.
        id: of the session; part of the tokens of its leases.
    """

    dsn: str
    schema: str
    worker: str
    sides: Sequence[str]
    silent_seconds: float
    on_event: Callable[[str, str], None]
    clock: Callable[[], float] = time.monotonic
    id: str = field(default_factory=partial(secrets.token_hex, 4), init=False)

    def __post_init__(self) -> None:
        self._key = int.from_bytes(bytes.fromhex(self.id), signed=True)
        self._refusal = ""
        self._sql = load_queries("sessions")
        self._lost_at = float("-inf")
        self._change = asyncio.Event()
        silent = int(self.silent_seconds) + 1
        self._kept = KeptConnection(
            dsn=self.dsn,
            settings=session_settings(self.schema, "sea_mq_worker session")
            | {"tcp_keepalives_idle": str(silent), "tcp_user_timeout": str(1000 * (silent + 30))},
            on_open=self._open,
            on_held=self._change.set,
            on_lost=self._lost,
            on_failed=self._report_refusal,
            pause_seconds=_RECONNECT_SECONDS,
            pause_max_seconds=_RECONNECT_MAX_SECONDS,
        )

    async def start(self) -> None:
        """Begin the session; returns when the lock is held, or when the first attempt has failed."""
        await self._kept.start()

    async def close(self) -> None:
        """End the connection. The session's row stays: another worker finds nothing to take over."""
        await self._kept.close()

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
        connection = self._kept.current
        if connection is None:
            raise StoreUnavailableError("the worker's session in PostgreSQL is interrupted")
        try:
            with translated():
                async with self._kept.turn:
                    return list(await connection.fetch(self._sql[statement], *args))
        except UnavailableError:
            connection.terminate()  # a session that does not answer proves nothing
            raise

    async def _open(self, connection: asyncpg.Connection) -> None:
        await connection.fetchval(_LOCK, self._key)
        await connection.add_listener(await connection.fetchval(_CHANNEL), lambda *_: self._change.set())
        await connection.fetch(self._sql["begin"], self.id, list(self.sides), self.worker)

    def _lost(self) -> None:
        self._lost_at = self.clock()
        if not self._kept.is_closed:
            self.on_event("session_lost", "a new one is opened; until then leases end by their time")

    def _report_refusal(self, error: UnavailableError | ContractError) -> None:
        """Report once why this worker can have no session; an outage is reported by those who work."""
        if isinstance(error, ContractError) and str(error) != self._refusal:
            self._refusal = str(error)
            self.on_event("session_refused", f"{error}; leases end by their time alone")

    def _joined_lost(self, _: object) -> None:
        """Note the end of a pool's connection: it may have been the last one while the own one is lost."""
        if self._kept.current is None:
            self._lost_at = self.clock()
