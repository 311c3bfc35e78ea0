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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import session_settings
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.kept_connection import KeptConnection
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError, UnavailableError, WorkerError
from sea_mq_worker.ports.sessions import OtherSession

_LOCK = "SELECT pg_advisory_lock_shared(7184, $1)"
_CHANNEL = "SELECT 'sea_mq_sessions.' || hashtext(current_schema()::text)::text"
_RECONNECT_SECONDS = 0.0
"""The first reconnection is immediate: others may conclude from a free lock that this worker has ended."""
_RECONNECT_MAX_SECONDS = 5.0
_NEVER = float("-inf")


@dataclass(kw_only=True, eq=False, repr=False)
class PostgresWorkerSession:
    """Holds the lock of this worker, and sees those of others; see ``ports.sessions.WorkerSessions``.

    Attributes:
        dsn: a direct connection to the server.
        schema: of the tables.
        worker: name of the worker, for people.
        sides: sides whose leases end with the session.
        silent_seconds: the server ends a silent session no sooner; at least the longest lease, so that leases
            decide about a worker that is cut off.
        on_event: called with the key and the text of what operators should know.
        clock: monotonic seconds.
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
        self._lost_at = _NEVER
        self._change = asyncio.Event()
        self._kept = KeptConnection(
            dsn=self.dsn,
            settings=session_settings(self.schema, "sea_mq_worker session") | _keepalive(self.silent_seconds),
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

    def _report_refusal(self, error: WorkerError) -> None:
        """Report once why this worker can have no session; an outage is reported by those who work."""
        if isinstance(error, ContractError) and str(error) != self._refusal:
            self._refusal = str(error)
            self.on_event("session_refused", f"{error}; leases end by their time alone")

    def _joined_lost(self, _: object) -> None:
        """Note the end of a pool's connection: it may have been the last one while the own one is lost."""
        if self._kept.current is None:
            self._lost_at = self.clock()


def _keepalive(silent_seconds: float) -> dict[str, str]:
    seconds = int(silent_seconds) + 1
    return {"tcp_keepalives_idle": str(seconds), "tcp_user_timeout": str(1000 * (seconds + 30))}
