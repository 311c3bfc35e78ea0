"""PostgresWakeup: LISTEN, with producers that notify only while somebody listens for it.

NOTIFY serialises the commits of all transactions that use it, so producers send none while workers are busy.
A worker watches by holding an advisory lock exclusively. The insert trigger (outbox_notify) tries the same
lock shared, and sends a notification only if it does not get the lock.

    worker                       advisory lock        producer
      |  claim finds nothing       (free)
      |                             shared  <-------  INSERT: gets the lock, sends nothing
      |  try exclusive: refused     shared
      |  wait for it ...            shared
      |                             (free)  <-------  COMMIT: the event is visible, the lock is free
      |  watch begins              EXCLUSIVE
      |  claim again: finds it     EXCLUSIVE
      |  claim finds nothing       EXCLUSIVE
      |  sleep                     EXCLUSIVE <------  INSERT: does not get the lock, notifies at its commit
      |  woken: unlock, claim       (free)

No commit is lost. A silent producer keeps the shared lock until its commit is visible, so a watch begins only
after all silent commits. ``wait`` returns once when a watch has begun, and the caller's next claim sees these
events; every later insert notifies. One watching worker is enough: the others see its lock and only listen.
"""

import asyncio
import contextlib
import enum
from collections.abc import Coroutine
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import session_settings
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.opening import notice_silence, opening
from sea_mq_worker.domain.errors import ContractError, UnavailableError

_CONNECT_SECONDS = 10.0
_STATEMENT_SECONDS = 5.0
_HEARTBEAT_SECONDS = 30.0
_LOOK_SECONDS = 1.0
"""Interval at which the connection is checked: the driver does not report every end of a connection."""
_RECONNECT_SECONDS = 0.5
_RECONNECT_MAX_SECONDS = 30.0
_LOCK_MILLISECONDS = "50"

_QUIET_SECONDS = 0.1
"""After a notification, more are likely: claims are made every 10 ms, and producers need not notify."""
_NAP_SECONDS = 0.01
_SETTLE_SECONDS = 0.1
"""Longer than a claim that finds nothing, so that a claim that began before the watch is repeated."""
_RELY_SECONDS = 4.0
"""How long a worker relies on the watch of another one before it checks again."""

_IDENTITY = "SELECT hashtext(current_schema()::text) AS key, pg_backend_pid() AS pid"
_TRY_WATCH = """
SELECT CASE
    WHEN pg_try_advisory_lock(7177, $1) THEN 'own'
    WHEN EXISTS (
        SELECT FROM pg_locks
         WHERE locktype = 'advisory' AND classid = 7177::oid AND objid = ($1::bigint & 4294967295)::oid
           AND objsubid = 2 AND mode = 'ExclusiveLock' AND granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) THEN 'other'
    ELSE 'none'
END"""
_WATCH = "SELECT pg_advisory_lock(7177, $1)"
_END_WATCH = "SELECT pg_advisory_unlock_all()"
_IS_PRIMARY = "SELECT current_setting('transaction_read_only') = 'off'"


class _Watch(enum.StrEnum):
    NONE = "none"
    OWN = "own"
    OTHER = "other"


class PostgresWakeup:
    """Ends waits when a producer commits; see ``ports.wakeup.Wakeup``.

    It has one connection of its own, direct to the server, and any number of callers, who must claim between
    two waits. While it cannot listen, waits last until their time-out, and it keeps trying to connect.
    """

    def __init__(self, *, dsn: str, schema: str, application_name: str = "sea_mq_worker wakeup") -> None:
        """Serve the outbox of ``schema``, without a query yet."""
        self._dsn = dsn
        self._settings = {
            **session_settings(schema, application_name),
            "lock_timeout": _LOCK_MILLISECONDS,
        }
        self._connection: asyncpg.Connection | None = None
        self._key = 0
        self._watch = _Watch.NONE
        self._watch_began_at = 0.0
        self._rely_until = 0.0
        self._quiet_until = 0.0
        self._refusals = 0
        self._signal = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    @property
    def listening(self) -> bool:
        """Whether a commit can end a wait now."""
        return self._listening.is_set()

    async def start(self) -> None:
        """Begin to listen; returns when it does, or when the first try has failed."""
        first_try: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep_listening(first_try))
        await first_try

    async def close(self) -> None:
        """End the watch and the connection; later waits last their time-out."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, *self._tasks, return_exceptions=True)

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when an event may have been committed since the last call, or after the time-out."""
        now = asyncio.get_running_loop().time()
        if not self.listening:
            await self._sleep(timeout_seconds)
        elif self._watch is _Watch.NONE and now < self._quiet_until:
            await self._sleep(min(timeout_seconds, _NAP_SECONDS))
        elif self._watch is not _Watch.NONE and now < self._watch_began_at + _SETTLE_SECONDS:
            await self._sleep(min(timeout_seconds, self._watch_began_at + _SETTLE_SECONDS - now))
        elif self._is_watched(now):
            await self._sleep(timeout_seconds)
        elif not await asyncio.shield(self._spawn(self._begin_watch())):
            self._refusals += 1
            await self._sleep(min(timeout_seconds, _NAP_SECONDS * 2.0 ** min(self._refusals, 10)))

    def _is_watched(self, now: float) -> bool:
        return self._watch is _Watch.OWN or (self._watch is _Watch.OTHER and now < self._rely_until)

    async def _sleep(self, seconds: float) -> None:
        signal = self._signal
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await signal.wait()

    def _wake_all(self) -> None:
        self._signal.set()
        self._signal = asyncio.Event()

    def _notified(self, *_: object) -> None:
        self._quiet_until = asyncio.get_running_loop().time() + _QUIET_SECONDS
        if self._watch is _Watch.OWN:
            self._spawn(self._end_watch())
        self._watch = _Watch.NONE
        self._wake_all()

    async def _begin_watch(self) -> bool:
        """Make producers notify; False: not yet, because transactions of silent producers are still open."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._is_watched(loop.time()):
                return True
            was = self._watch
            self._watch = _Watch(await self._ask(_TRY_WATCH, self._key, failed=_Watch.NONE))
            if self._watch is _Watch.NONE and await self._ask(_WATCH, self._key, failed=False) is not False:
                self._watch = _Watch.OWN
            self._rely_until = loop.time() + _RELY_SECONDS
            if self._watch is not was:
                self._watch_began_at = loop.time()
        if self._watch is not _Watch.NONE:
            self._refusals = 0
        return self._watch is not _Watch.NONE

    async def _end_watch(self) -> None:
        async with self._turn:
            await self._ask(_END_WATCH, failed=None)

    async def _ask(self, statement: str, *args: object, failed: object) -> Any:
        """Run a statement on the one connection and return its value, or ``failed``."""
        if self._connection is None:
            return failed
        try:
            with translated():
                return await self._connection.fetchval(statement, *args, timeout=_STATEMENT_SECONDS)
        except (UnavailableError, ContractError):
            return failed

    async def _keep_listening(self, first_try: asyncio.Future[None]) -> None:
        delay_seconds = _RECONNECT_SECONDS
        while True:
            try:
                with translated():
                    await self._listen(first_try)
                delay_seconds = _RECONNECT_SECONDS
            except (UnavailableError, ContractError):
                delay_seconds = min(delay_seconds * 2, _RECONNECT_MAX_SECONDS)
            if not first_try.done():
                first_try.set_result(None)
            await asyncio.sleep(delay_seconds)

    async def _listen(self, first_try: asyncio.Future[None]) -> None:
        """Listen until the connection is lost.

        Raises:
            ContractError: this is no direct connection, and listening on it is in vain.
        """
        async with opening(self._dsn) as address:
            connection = await asyncpg.connect(
                **address,
                timeout=_CONNECT_SECONDS,
                command_timeout=_STATEMENT_SECONDS,
                server_settings=self._settings,
                target_session_attrs="read-write",
            )
        notice_silence(connection)
        try:
            identity = await connection.fetchrow(_IDENTITY)
            if identity["pid"] != connection.get_server_pid():
                raise ContractError("LISTEN needs a direct connection, and this one leads through a proxy")
            self._key = identity["key"]
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(f"outbox_events.{self._key}", self._notified)
            self._connection = connection
            self._listening.set()
            self._wake_all()
            if not first_try.done():
                first_try.set_result(None)
            await self._until_lost(connection, lost)
        finally:
            self._forget()
            await _close(connection)

    async def _until_lost(self, connection: asyncpg.Connection, lost: asyncio.Event) -> None:
        """Beat: a connection that is cut off says nothing by itself, nor does one to a former primary."""
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + _HEARTBEAT_SECONDS
        while not (lost.is_set() or connection.is_closed()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await lost.wait()
            if loop.time() >= beat_at:
                beat_at = loop.time() + _HEARTBEAT_SECONDS
                async with self._turn:
                    if await self._ask(_IS_PRIMARY, failed=False) is False:
                        return

    def _forget(self) -> None:
        self._connection = None
        self._listening.clear()
        self._watch = _Watch.NONE
        self._wake_all()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _close(connection: asyncpg.Connection) -> None:
    """Close within bounds; a connection that is lost already, or cut off, is dropped."""
    try:
        await connection.close(timeout=1.0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
