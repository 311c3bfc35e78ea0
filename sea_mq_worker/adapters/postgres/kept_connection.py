"""KeptConnection: one connection direct to the primary, opened again whenever it is lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import asyncpg

from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.opening import notice_silence, opening
from sea_mq_worker.domain.errors import ContractError, UnavailableError

_STATEMENT_SECONDS = 5.0
_CONNECT_SECONDS = 10.0
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
        dsn: of the server.
        settings: of the session.
        on_open: prepares each new connection, before it becomes ``current``.
        on_held: called when the connection is ``current``.
        on_lost: called when it is so no more, also by ``close``.
        on_failed: called with the error of each failed attempt.
        pause_seconds: delay before a lost connection is replaced; it doubles after each failure.
        pause_max_seconds: longest delay.
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
        """Hold a connection until it is lost.

        Raises:
            StoreUnavailableError: PostgreSQL cannot be reached.
            ContractError: this is no direct connection, or ``on_open`` is refused.
        """
        connection = await _connect_direct(self.dsn, self.settings)
        try:
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
            await _close_in_time(connection)

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


async def _connect_direct(dsn: str, settings: Mapping[str, str]) -> asyncpg.Connection:
    """Open a connection whose session ends with it.

    Raises:
        StoreUnavailableError: no primary can be reached.
        ContractError: a proxy is in between, which may give the session to others.
    """
    async with opening(dsn) as address:
        connection = await asyncpg.connect(
            **address,
            timeout=_CONNECT_SECONDS,
            command_timeout=_STATEMENT_SECONDS,
            server_settings=dict(settings),
            target_session_attrs="read-write",
        )
    notice_silence(connection)
    try:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
    except BaseException:
        await _close_in_time(connection)
        raise
    if pid != connection.get_server_pid():
        await _close_in_time(connection)
        raise ContractError("LISTEN and locks need a direct connection, and this one leads through a proxy")
    return connection


async def _close_in_time(connection: asyncpg.Connection) -> None:
    """Close within bounds; a connection that is lost already, or cut off, is dropped."""
    try:
        await connection.close(timeout=_CLOSE_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
