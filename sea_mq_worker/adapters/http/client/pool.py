"""A pool of at most N connections to one handler; the one used last is used first."""

import asyncio
from collections import deque
from typing import Self

import httpx2

from sea_mq_worker.adapters.http.client.connection import Connection


class ConnectionPool:
    """Slots for calls, entered by ``async with``, and idle connections.

    The pool has no timer: it closes expired connections when a call takes or returns one.

    Args:
        size: number of slots.
        wait_seconds: time limit of the wait for a slot.
        keepalive_seconds: an idle connection is not used again after this long.
    """

    def __init__(self, *, size: int, wait_seconds: float, keepalive_seconds: float) -> None:
        self._slots = asyncio.Semaphore(size)
        self._wait_seconds = wait_seconds
        self._keepalive_seconds = keepalive_seconds
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self.closed = False

    async def __aenter__(self) -> Self:
        if not self._slots.locked():
            await self._slots.acquire()
            return self
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise httpx2.PoolTimeout("all connections are in use") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()

    def add(self, connection: Connection) -> None:
        """Track a new connection until it has ended."""
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))

    def take(self) -> Connection | None:
        """Return the connection used last that is still usable, if there is one."""
        fresh_since = asyncio.get_running_loop().time() - self._keepalive_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > fresh_since and connection.is_quiet:
                return connection
            connection.abort()
        return None

    def put(self, connection: Connection) -> None:
        """Keep a connection for the next call if it is reusable, else close it."""
        if self.closed or not connection.is_reusable:
            connection.abort()
            return
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].idle_since <= now - self._keepalive_seconds:
            self._idle.popleft().abort()
        connection.idle_since = now
        self._idle.append(connection)

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        self.closed = True
        connections = tuple(self._open)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in connections))
