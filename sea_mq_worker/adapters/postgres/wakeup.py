"""PostgresWakeup: LISTEN, with producers that notify only while somebody listens for it.

NOTIFY serialises the commits of all transactions that use it, so producers send none while workers are busy.
A lane watches by holding an advisory lock exclusively (``lane_watch``). The insert trigger (outbox_notify)
tries the lock of each lane that gets events, shared, and notifies the lane only if it does not get that lock.
So events without an ordering key do not wake the lane with keys, and the reverse.
"""

import asyncio

import asyncpg

from sea_mq_worker.adapters.postgres.connection import session_settings
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.kept_connection import KeptConnection
from sea_mq_worker.adapters.postgres.lane_watch import LaneWatch
from sea_mq_worker.domain.errors import ContractError, UnavailableError

_RECONNECT_SECONDS = 0.5
_RECONNECT_MAX_SECONDS = 30.0
_LOCK_MILLISECONDS = "50"

_LANES = {"unkeyed": 7177, "keyed": 7179}
"""Payload of each lane's notifications, and the first number of its advisory lock; as in outbox_notify."""

_KEY = "SELECT hashtext(current_schema()::text)"


class PostgresWakeup:
    """Ends the waits of a lane when a producer commits an event for it; see ``ports.wakeup.Wakeup``.

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

    def lane(self, keyed: bool) -> LaneWatch:
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
