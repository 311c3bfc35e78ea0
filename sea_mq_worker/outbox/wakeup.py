"""When a lane claims again: at intervals, or by LISTEN, with producers that notify only a listener.

NOTIFY serialises the commits of all transactions that use it, so producers send none while workers are busy.
The insert trigger (outbox_notify) tries the advisory lock of each lane that gets events, shared, and notifies
the lane only if it does not get that lock. So events without an ordering key do not wake the lane with keys,
and the reverse. A lane watches by holding its lock exclusively, while it waits and commits are few:

    lane                         advisory lock        producer
      |  claim finds nothing       (free)
      |                             shared  <-------  INSERT: gets the lock, sends nothing
      |  try exclusive: refused     shared
      |  wait for it ...            shared
      |                             (free)  <-------  COMMIT: the event is visible, the lock is free
      |  watch begins              EXCLUSIVE
      |  claim again: finds it     EXCLUSIVE
      |  sleep                     EXCLUSIVE <------  INSERT: does not get the lock, notifies at its commit
      |  woken: claim              EXCLUSIVE
      |  many commits: unlock       (free)            INSERT: gets the lock, sends nothing
      |  claims at intervals        (free)

No commit is lost. A silent producer keeps the shared lock until its commit is visible, so a watch begins only
after all silent commits. ``wait`` returns once when a watch has begun, and the lane's next claim sees these
events; every later insert notifies. A notification during a claim ends the next wait. One watching worker is
enough: the others see its lock and only listen.
"""

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import Coroutine
from typing import Any

import asyncpg

from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import session_settings
from sea_mq_worker.postgres.sessions import KeptConnection
from sea_mq_worker.runtime.waiting import sleep_or_stop

_RECONNECT_SECONDS = 0.5
_RECONNECT_MAX_SECONDS = 30.0
_LOCK_MILLISECONDS = "50"

_LANES = {"unkeyed": 7177, "keyed": 7179}
"""Payload of each lane's notifications, and the first number of its advisory lock; as in outbox_notify."""

_KEY = "SELECT hashtext(current_schema()::text)"

_BUSY_COUNT = 10
_BUSY_SECONDS = 0.05
"""Ten notifications in this time end the watch: claims at intervals cost less, and hold up no commits."""
_QUIET_SECONDS = 0.1
"""After a watch ended so, commits are likely to go on: the lane claims at intervals."""
_NAP_SECONDS = 0.01
_RELY_SECONDS = 4.0
"""Time for which a worker relies on the watch of another one before it checks again."""

_TRY_WATCH = """
SELECT CASE
    WHEN pg_try_advisory_lock($1, $2) THEN 'own'
    WHEN EXISTS (
        SELECT FROM pg_locks
         WHERE locktype = 'advisory' AND classid = $1::oid AND objid = ($2::bigint & 4294967295)::oid
           AND objsubid = 2 AND mode = 'ExclusiveLock' AND granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) THEN 'other'
    ELSE 'none'
END"""
_WATCH = "SELECT pg_advisory_lock($1, $2)"
_END_WATCH = "SELECT pg_advisory_unlock($1, $2)"


class PostgresWakeup:
    """Ends the waits of a lane when a producer commits an event for it; see ``ports.Wakeup``.

    It has one connection of its own, direct to the server. While it cannot listen, waits last until their
    time-out, and it keeps trying to connect.
    """

    def __init__(self, *, dsn: str, schema: str, application_name: str = "sea_mq_worker wakeup") -> None:
        """Serve the outbox of ``schema``, without a query yet."""
        self._key = 0
        self._lanes = {payload: LaneWatch(self, number) for payload, number in _LANES.items()}
        self._kept = KeptConnection(
            dsn=dsn,
            settings=session_settings(schema, application_name) | {"lock_timeout": _LOCK_MILLISECONDS},
            on_open=self._listen,
            on_held=self._wake_all,
            on_lost=self._forget_all,
            pause_seconds=_RECONNECT_SECONDS,
            pause_max_seconds=_RECONNECT_MAX_SECONDS,
        )

    def lane(self, keyed: bool) -> "LaneWatch":
        """Return the wake-up of the lane with ordering keys, or of the one without."""
        return self._lanes["keyed" if keyed else "unkeyed"]

    @property
    def listening(self) -> bool:
        """Whether a commit can end a wait now."""
        return self._kept.current is not None

    async def start(self) -> None:
        """Begin to listen; returns when it does, or when the first attempt has failed."""
        await self._kept.start()

    async def close(self) -> None:
        """End the watches and the connection; later waits last their time-out."""
        await asyncio.gather(self._kept.close(), *(lane.close() for lane in self._lanes.values()))

    async def ask(self, statement: str, number: int, *, failed: object) -> object:
        """Run a statement about one advisory lock; return its value, or ``failed``."""
        async with self._kept.turn:
            if self._kept.current is None:
                return failed
            try:
                with translated():
                    return await self._kept.current.fetchval(statement, number, self._key)
            except (UnavailableError, ContractError):
                return failed

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        if lane := self._lanes.get(payload):
            lane.notified()

    async def _listen(self, connection: asyncpg.Connection) -> None:
        self._key = await connection.fetchval(_KEY)
        await connection.add_listener(f"outbox_events.{self._key}", self._notified)

    def _forget_all(self) -> None:
        for lane in self._lanes.values():
            lane.forget()

    def _wake_all(self) -> None:
        for lane in self._lanes.values():
            lane.wake()


class _Watch(enum.StrEnum):
    NONE = "none"
    OWN = "own"
    OTHER = "other"


class LaneWatch:
    """The wake-up of one lane; one caller waits, and claims between two waits."""

    def __init__(self, session: "PostgresWakeup", number: int) -> None:
        """Watch by the advisory lock whose first number is ``number``."""
        self._session = session
        self._number = number
        self._watch = _Watch.NONE
        self._rely_until = 0.0
        self._quiet_until = 0.0
        self._refusals = 0
        self._recent: deque[float] = deque(maxlen=_BUSY_COUNT)
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def announces(self) -> bool:
        """Whether every commit from now on ends a wait."""
        return self._session.listening and self._is_watched(asyncio.get_running_loop().time())

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when an event may have been committed since the last call, or after the time-out."""
        now = asyncio.get_running_loop().time()
        if not self._session.listening or self._is_watched(now):
            await self._sleep(timeout_seconds)
        elif now < self._quiet_until:
            await self._sleep(min(timeout_seconds, _NAP_SECONDS))
        else:
            was = self._watch
            self._woken.clear()
            if not await asyncio.shield(self._spawn(self._begin_watch())):
                self._refusals += 1
                await self._sleep(min(timeout_seconds, _NAP_SECONDS * 2.0 ** min(self._refusals, 10)))
            elif was is self._watch:  # another worker's watch goes on
                await self._sleep(timeout_seconds)

    def wake(self) -> None:
        self._woken.set()

    def notified(self) -> None:
        """Wake the lane; end the watch if notifications come too fast."""
        self.wake()
        now = asyncio.get_running_loop().time()
        self._recent.append(now)
        many = len(self._recent) == _BUSY_COUNT and now - self._recent[0] < _BUSY_SECONDS
        if many and self._watch is not _Watch.NONE:
            self._quiet_until = now + _QUIET_SECONDS
            if self._watch is _Watch.OWN:
                self._spawn(self._session.ask(_END_WATCH, self._number, failed=None))
            self._watch = _Watch.NONE

    def forget(self) -> None:
        """Note that the connection is lost, and with it the watch."""
        self._watch = _Watch.NONE
        self.wake()

    async def close(self) -> None:
        """Wait for the statements under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _is_watched(self, now: float) -> bool:
        return self._watch is _Watch.OWN or (self._watch is _Watch.OTHER and now < self._rely_until)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _begin_watch(self) -> bool:
        """Make producers notify; False: not yet, because transactions of silent producers are still open."""
        watch = _Watch(str(await self._session.ask(_TRY_WATCH, self._number, failed=_Watch.NONE)))
        if watch is _Watch.NONE and await self._session.ask(_WATCH, self._number, failed=False) is not False:
            watch = _Watch.OWN
        self._rely_until = asyncio.get_running_loop().time() + _RELY_SECONDS
        self._watch = watch if self._session.listening else _Watch.NONE
        if self._watch is not _Watch.NONE:
            self._refusals = 0
        return self._watch is not _Watch.NONE

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class PollingWakeup:
    """Wakeup by polling alone, where notifications cannot work and in tests."""

    announces = False

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the current waits."""
        self._woken.set()
        self._woken = asyncio.Event()

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return after the time-out or when woken."""
        await sleep_or_stop(self._woken, seconds=timeout_seconds)
