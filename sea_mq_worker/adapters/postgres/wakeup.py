"""PostgresWakeup: LISTEN, with producers that notify only while somebody listens for it.

NOTIFY serialises the commits of all transactions that use it, so producers send none while workers are busy.
A lane watches by holding an advisory lock exclusively (``lane_watch``). The insert trigger (outbox_notify)
tries the lock of each lane that gets events, shared, and notifies the lane only if it does not get that lock.
So events without an ordering key do not wake the lane with keys, and the reverse.
"""

import asyncio
import contextlib

import asyncpg

from sea_mq_worker.adapters.postgres.connection import session_settings
from sea_mq_worker.adapters.postgres.direct import STATEMENT_SECONDS, close_in_time, connect_direct
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.lane_watch import LaneWatch
from sea_mq_worker.domain.errors import ContractError, UnavailableError

_HEARTBEAT_SECONDS = 30.0
_LOOK_SECONDS = 1.0
"""Interval at which the connection is checked: the driver does not report every end of a connection."""
_RECONNECT_SECONDS = 0.5
_RECONNECT_MAX_SECONDS = 30.0
_LOCK_MILLISECONDS = "50"

_LANES = {"unkeyed": 7177, "keyed": 7179}
"""Payload of each lane's notifications, and the first number of its advisory lock; as in outbox_notify."""

_KEY = "SELECT hashtext(current_schema()::text)"
_IS_PRIMARY = "SELECT current_setting('transaction_read_only') = 'off'"


class PostgresWakeup:
    """Ends the waits of a lane when a producer commits an event for it; see ``ports.wakeup.Wakeup``.

    It has one connection of its own, direct to the server. While it cannot listen, waits last until their
    time-out, and it keeps trying to connect.
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
        self._lanes = {payload: LaneWatch(self, number) for payload, number in _LANES.items()}
        self._turn = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    def lane(self, keyed: bool) -> LaneWatch:
        """Return the wake-up of the lane with ordering keys, or of the one without."""
        return self._lanes["keyed" if keyed else "unkeyed"]

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
        """End the watches and the connection; later waits last their time-out."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(
                self._keeper, *(lane.close() for lane in self._lanes.values()), return_exceptions=True
            )

    async def ask(self, statement: str, number: int, *, failed: object) -> object:
        """Run a statement about one advisory lock; return its value, or ``failed``."""
        async with self._turn:
            return await self._ask(statement, number, self._key, failed=failed)

    async def _ask(self, statement: str, *args: object, failed: object) -> object:
        if self._connection is None:
            return failed
        try:
            with translated():
                return await self._connection.fetchval(statement, *args, timeout=STATEMENT_SECONDS)
        except (UnavailableError, ContractError):
            return failed

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        if lane := self._lanes.get(payload):
            lane.notified()

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
        connection = await connect_direct(self._dsn, self._settings)
        try:
            self._key = await connection.fetchval(_KEY)
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
            await close_in_time(connection)

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
        for lane in self._lanes.values():
            lane.forget()

    def _wake_all(self) -> None:
        for lane in self._lanes.values():
            lane.wake()
