"""The database's floor: the worker's own statements in a plain loop, without broker and application."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from sea_mq_worker.outbox.event import NO_BYTES_MAX
from sea_mq_worker.postgres.pool import connect_pool
from sea_mq_worker.postgres.queries import load_named
from sea_mq_worker.settings import Settings

_START = datetime(2000, 1, 1, tzinfo=UTC), 0
_OWNER = "floor"
_RUN_MAX = 100


async def claim_and_settle(settings: Settings, *, count: int, ordered: bool) -> None:
    """Claim and settle the backlog as published, with the worker's batches, session settings and overlap."""
    pool = await connect_pool(
        settings.database_url.get_secret_value(),
        schema=settings.database_schema,
        size_max=settings.database_pool_max,
        application_name=_OWNER,
        statement_timeout_seconds=settings.database_timeout_seconds,
        connect_timeout_seconds=settings.database_timeout_seconds,
    )
    try:
        await _Lane(pool, settings, ordered=ordered).drain(count)
    finally:
        await pool.close()


_BATCH_BYTES = 8 * 2**20
"""As the worker's claims."""


class _Lane:
    """One lane's loop: the next batch is claimed while earlier ones are settled."""

    def __init__(self, pool: asyncpg.Pool, settings: Settings, *, ordered: bool) -> None:
        self._pool = pool
        self._stream = settings.stream
        self._batch_max = settings.outbox_batch_max
        self._bytes_max = _BATCH_BYTES
        self._places = asyncio.Semaphore(settings.outbox_batches_max)
        self._ordered = ordered
        self._sql = load_named("outbox")
        self._position = _START
        self._keys: set[str] = set()

    async def drain(self, count: int) -> None:
        claimed = 0
        async with asyncio.TaskGroup() as group:
            while claimed < count:
                await self._places.acquire()
                head, events = _split(await (self._claim_ordered() if self._ordered else self._claim()))
                if head["fresh_at"] is not None:
                    self._position = head["fresh_at"], head["fresh_seq"]
                self._keys.update(head.get("leftover", ()))
                claimed += len(events)
                task = group.create_task(self._settle(head["claimed_at"], events))
                task.add_done_callback(lambda _: self._places.release())

    async def _claim(self) -> Sequence[Any]:
        return await self._pool.fetch(*self._sql["claim"].bind(**self._given(), retries_first=False))

    async def _claim_ordered(self) -> Sequence[Any]:
        hints, self._keys = list(self._keys), set()
        claim = self._sql["claim_ordered"].bind(
            **self._given(),
            run_max=_RUN_MAX,
            hints=hints,
            following=[],
            floors="{}",
            running=[],
            running_from=[],
            place=0,
            workers=1,
            hold_dead_keys=False,
        )
        return await self._pool.fetch(*claim)

    def _given(self) -> dict[str, Any]:
        """Return the parameters that both claims have."""
        return {
            "limit": self._batch_max,
            "claimed_by": _OWNER,
            "fresh_at": self._position[0],
            "fresh_seq": self._position[1],
            "retry_at": _START[0],
            "retry_seq": _START[1],
            "retry_places": self._batch_max // 4,
            "batch_bytes_max": self._bytes_max,
            "event_bytes_max": NO_BYTES_MAX,
            "passed_over": [],
            "names_only": False,
        }

    async def _settle(self, claimed_at: datetime, events: Sequence[Any]) -> None:
        if not events:
            return
        size = len(events)
        kept = await self._pool.fetchval(
            self._sql["mark_published"].sql, [_OWNER], [claimed_at], [event["id"] for event in events],
            self._stream, [event["seq"] for event in events],
        )  # fmt: skip
        if kept is not None:
            raise RuntimeError(f"of {size} claimed events, {len(kept)} were settled")
        self._keys.update(event["ordering_key"] for event in events if event["ordering_key"])


def _split(rows: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    [head] = [row for row in rows if row["id"] is None]
    return head, [row for row in rows if row is not head]
