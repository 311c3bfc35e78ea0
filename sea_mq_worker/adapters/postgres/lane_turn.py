"""PostgresLaneTurn: one of several workers claims the events that have an ordering key.

Claims of keyed events exclude each other. Workers that alternate claim by claim ask many times for their
turn, and they write to the stream together, which makes the stream acknowledge each event by itself. So one
worker keeps the lane by an advisory lock of its session, and the others stand by:

    worker A                      advisory lock      worker B
      |  take: own                  A
      |  claim, claim, claim        A  <-----------  take: other; B waits a second
      |  ends, or is killed       (free)
                                    B  <-----------  take: own
                                    B                claim, claim, claim

A worker that is frozen, or waits for the broker, keeps the lock and claims nothing. The server shows how long
its session has been idle. After some seconds the others claim without the lock.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError

_IDLE_SECONDS = 5.0
"""Longer than an idle lane waits between two claims."""


class PostgresLaneTurn:
    """Keeps the lane by one connection of the pool; see ``ports.lane_turn.LaneTurn``."""

    def __init__(self, *, pool: asyncpg.Pool, idle_seconds: float = _IDLE_SECONDS) -> None:
        """Run no statement yet.

        Args:
            pool: direct connections to the server, at least two: the lane keeps one.
            idle_seconds: time without a statement after which the holder of the lane no longer counts.
        """
        self._pool = pool
        self._idle_seconds = idle_seconds
        self._sql = load_queries("lane")
        self._connection: Any = None

    async def take(self) -> bool:
        """Take the lane, or keep it. After an error the answer is True: the claim meets the same error."""
        if self._connection is not None and _is_open(self._connection):
            return True
        await self._forget()
        try:
            return await self._try_take()
        except (StoreUnavailableError, ContractError):
            return True

    async def fetch(self, statement: str, *args: object) -> Sequence[Any]:
        """Run a claim on the connection that keeps the lane: the server shows the time of its last one."""
        try:
            return await fetch(self._pool, statement, *args, connection=self._connection)
        except StoreUnavailableError:
            await self._forget()
            raise

    async def leave(self) -> None:
        """Release the lock; if that fails, end the session and the lock with it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(StoreUnavailableError, ContractError):
            try:
                await fetch(self._pool, self._sql["leave"], connection=connection)
            except BaseException:
                await self._end(connection)
                raise
            await self._pool.release(connection)

    async def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._end(connection)

    async def _try_take(self) -> bool:
        with translated():
            connection = await self._pool.acquire()
        try:
            [row] = await fetch(self._pool, self._sql["take"], self._idle_seconds, connection=connection)
        except BaseException:
            await self._end(connection)  # nobody knows whether it has the lock
            raise
        if row["holder"] == "own":
            self._connection = connection
        else:
            await self._pool.release(connection)
        return bool(row["holder"] != "other")

    async def _end(self, connection: Any) -> None:
        if _is_open(connection):
            connection.terminate()
        await self._pool.release(connection)


def _is_open(connection: Any) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False  # it was lost, and the pool has taken it back
