"""Connections to one handler: so many at most, and the one used last is used first."""

import asyncio
from collections import deque
from typing import Self

import httpx2

from sea_mq_worker.adapters.http.client.connection import Connection


class ConnectionPool:
    """Places for calls, entered by ``async with``, and connections that wait for the next one.

    No timer runs beside it: what has been idle for too long is found when connections come and go.

    Args:
        size: how many places there are.
        wait_seconds: for a place.
        keepalive_seconds: an idle connection is not used again after this long.
    """

    def __init__(self, *, size: int, wait_seconds: float, keepalive_seconds: float) -> None:
        self._size = size
        self._places = asyncio.Semaphore(size)
        self._wait_seconds = wait_seconds
        self._keepalive_seconds = keepalive_seconds
        self._active = self._queued = 0
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self.closed = False

    def __repr__(self) -> str:
        connections = f"{len(self._open)} open, {len(self._idle)} idle"
        return f"<ConnectionPool [Requests: {self._active} active, {self._queued} queued | {connections}]>"

    async def __aenter__(self) -> Self:
        if self._active + self._queued < self._size:
            await self._places.acquire()
        else:
            await self._queue()
        self._active += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._active -= 1
        self._places.release()

    async def _queue(self) -> None:
        self._queued += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise httpx2.PoolTimeout("all connections are in use") from None
        finally:
            self._queued -= 1

    def add(self, connection: Connection) -> None:
        """Look after a new one until it is lost."""
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))

    def take(self) -> Connection | None:
        """Return the one used last, if any is still good."""
        fresh_since = asyncio.get_running_loop().time() - self._keepalive_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > fresh_since and connection.is_quiet:
                return connection
            connection.abort()
        return None

    def put(self, connection: Connection) -> None:
        """Keep one for the next call if it is good for that."""
        if self.closed or not connection.is_reusable:
            connection.abort()
            return
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].idle_since <= now - self._keepalive_seconds:
            self._idle.popleft().abort()
        connection.idle_since = now
        self._idle.append(connection)

    async def aclose(self) -> None:
        """End all; safe twice."""
        self.closed = True
        connections = tuple(self._open)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.lost for connection in connections))
