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

A lock proves no service, so the others judge the one that holds it. They claim without the lock, which is
correct and costs more, while it is held

- by a session that is no worker's;
- by a worker that has run no statement for some seconds: it is frozen, or waits for the broker;
- by a worker that leaves an event alone for as long, although any claim might take it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries

_IDLE_SECONDS = 5.0
"""Longer than an idle lane waits between two claims."""
_OUT_OF_TURN_SECONDS = 30.0
"""How long a worker that leaves events alone is not waited for."""
_ASK_SECONDS = 1.0
"""Least time between two questions for the lock of a worker that claims without it."""
_NEVER = float("-inf")


class PostgresLaneTurn:
    """Keeps the lane by one connection of the pool, which has at least two; see ``ports.LaneTurn``."""

    def __init__(
        self,
        *,
        pool: asyncpg.Pool,
        hold_dead_keys: bool = False,
        on_event: Callable[[str, str], None] = lambda _event, _text: None,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        """``idle_seconds``: time without progress after which the holder of the lane no longer counts."""
        self._pool = pool
        self._hold_dead_keys = hold_dead_keys
        self.on_event = on_event
        self._idle_seconds = idle_seconds
        self._sql = load_queries("sessions")
        self._connection: Any = None
        self._left_alone: dict[int, float] = {}
        """Events that the other worker might claim, each with the time at which it was first seen waiting."""
        self._reported = 0
        self._out_of_turn_until = self._ask_at = _NEVER

    async def take(self) -> bool:
        """Take the lane, or keep it. After an error the answer is True: the claim meets the same error."""
        if self._connection is not None and _is_open(self._connection):
            return True
        await self._drop()
        if asyncio.get_running_loop().time() < self._ask_at:
            return True
        try:
            with translated():
                connection = await self._pool.acquire()
            try:
                given = self._idle_seconds, self._hold_dead_keys
                [row] = await fetch(self._pool, self._sql["take_lane"], *given, connection=connection)
            except BaseException:
                await self._end(connection)  # nobody knows whether it has the lock
                raise
        except (StoreUnavailableError, ContractError):
            return True
        if row["own"]:
            self._connection = connection
            self._left_alone, self._out_of_turn_until = {}, _NEVER
            return True
        await self._pool.release(connection)
        return self._may_claim(row)

    async def fetch(self, statement: str, *args: object) -> Sequence[Any]:
        """Run a claim on the connection that keeps the lane: the server shows the time of its last one."""
        try:
            return await fetch(self._pool, statement, *args, connection=self._connection)
        except StoreUnavailableError:
            await self._drop()
            raise

    async def leave(self) -> None:
        """Release the lock; if that fails, end the session and the lock with it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(StoreUnavailableError, ContractError):
            try:
                await fetch(self._pool, self._sql["leave_lane"], connection=connection)
            except BaseException:
                await self._end(connection)
                raise
            await self._pool.release(connection)

    def _may_claim(self, holder: Any) -> bool:
        """Judge the session that has the lane."""
        now = asyncio.get_running_loop().time()
        self._left_alone = {seq: self._left_alone.get(seq, now) for seq in holder["waiting"]}
        stalled = any(now - since >= self._idle_seconds for since in self._left_alone.values())
        if stalled:
            self._out_of_turn_until = now + _OUT_OF_TURN_SECONDS
        is_strange = holder["is_active"] and not holder["is_worker"]
        if (stalled or is_strange) and holder["pid"] != self._reported:
            self._reported = holder["pid"]
            self.on_event(
                "lane_not_served",
                f"session {holder['pid']} of PostgreSQL (application_name {holder['name']!r}) holds the lane "
                "of events with ordering keys, advisory lock (7182, hashtext(schema)), and leaves events "
                "alone; this worker claims without the lock",
            )
        served = holder["is_worker"] and holder["is_active"] and now >= self._out_of_turn_until
        if not served:
            self._ask_at = now + _ASK_SECONDS
        return not served

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._end(connection)

    async def _end(self, connection: Any) -> None:
        if _is_open(connection):
            connection.terminate()
        await self._pool.release(connection)


def _is_open(connection: Any) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False  # it was lost, and the pool has taken it back
