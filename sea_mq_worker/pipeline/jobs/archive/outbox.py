"""The archive's access to the outbox: lock, plan, verification and deletion of archived events."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import pyarrow as pa

from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.adapters.postgres.schema.leaf_partitions import (
    DROP_LEAF,
    LEAVES,
    LeafPartition,
    PageRange,
    dropped_leaf,
    for_leaf,
    leaf_of,
)
from sea_mq_worker.adapters.postgres.schema.migrations import check_version
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.archive.digest import Content, slices
from sea_mq_worker.pipeline.snapshot import Snapshot
from sea_mq_worker.pipeline.sources.tables.source import FIRST_TIME, LAST_TIME
from sea_mq_worker.settings import Settings

DELETE_ROWS = 2000
"""Cap on the events that one transaction deletes, which takes the server some ten milliseconds."""

_DELETE_BYTES = 8 * 2**20
"""Cap on the content of these events in bytes, because the server computes digests of it."""

_CHUNK_PAGES = 256
_TABLE = "outbox_events"

_DROP_SECONDS_MAX = 3600
"""Time limit for reading a partition before its drop; no other session waits for this read."""

_READ_ALL = f"SET LOCAL enable_seqscan = on; SET LOCAL statement_timeout = '{_DROP_SECONDS_MAX}s'"
_PROGRESS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """The events to archive in a leaf of the outbox: the whole table, or one partition.

    Attributes:
        leaf: the leaf's name.
        fit: number of events that can be archived.
        unfit: number of events that stay, because the lake cannot store one of their times.
        batches: page ranges, each with a limited number of events.
        may_go: whether the leaf is a partition whose time range has passed and that contains no other events.
    """

    leaf: str
    fit: int
    unfit: int
    batches: tuple[PageRange, ...]
    may_go: bool


def plan(held: Snapshot, before: datetime, batch_rows: int) -> list[LeafPlan]:
    """Locate the events to archive; their number can only decrease, because ``before`` is in the past."""
    leaves = [leaf_of(row) for row in held.rows(LEAVES, _TABLE)]
    return [_plan_of(held, leaf, before, batch_rows) for leaf in leaves]


def _plan_of(held: Snapshot, leaf: LeafPartition, before: datetime, batch_rows: int) -> LeafPlan:
    statement = for_leaf(_SQL["chunks"], _TABLE, leaf.name)
    chunks = held.rows(statement, before, FIRST_TIME, LAST_TIME, _CHUNK_PAGES)
    batches: list[list[int]] = []
    room = 0
    for chunk in chunks:
        if not chunk["fit"]:
            continue
        first = chunk["chunk"] * _CHUNK_PAGES
        if not batches or chunk["fit"] > room:
            batches.append([first, first])
            room = batch_rows
        batches[-1][1] = first + _CHUNK_PAGES
        room -= chunk["fit"]
    return LeafPlan(
        leaf=leaf.name,
        fit=sum(chunk["fit"] for chunk in chunks),
        unfit=sum(chunk["unfit"] for chunk in chunks),
        batches=tuple(PageRange(leaf.name, first, end) for first, end in batches),
        may_go=leaf.is_over(before) and not _has_others(held, leaf, before),
    )


def _has_others(held: Snapshot, leaf: LeafPartition, before: datetime) -> bool:
    (row,) = held.rows(for_leaf(_SQL["others"], _TABLE, leaf.name), before, FIRST_TIME, LAST_TIME)
    return bool(row["others"])


def content(held: Snapshot, before: datetime, pages: PageRange) -> Content:
    """Query from PostgreSQL the content that a batch must have."""
    statement = for_leaf(_SQL["content"], _TABLE, pages.leaf)
    (row,) = held.rows(statement, before, FIRST_TIME, LAST_TIME, pages.first, pages.end)
    return _content_of(row)


class Deletion:
    """Deletes archived events under the lock that excludes other archives."""

    def __init__(self, runner: asyncio.Runner, connection: asyncpg.Connection) -> None:
        self._runner = runner
        self._connection = connection

    def check_lock(self) -> None:
        """Check that the session with the lock is alive.

        Raises:
            StoreUnavailableError: the session has ended, and with it the lock.
        """
        self._runner.run(self._fetch("SELECT 1"))

    def begin(self, actor: str, reason: str, selection: Mapping[str, Any]) -> int:
        """Insert an audit record and return its number."""
        return self._runner.run(self._begin(actor, reason, selection))

    def altered(self, keys: pa.Table) -> str | None:
        """Return the ID of an event that differs from the lake although it was published at the same time."""
        return self._runner.run(self._altered(keys))

    def delete(
        self, keys: pa.Table, action: int, *, per_second: int, on_deleted: Callable[[int], None]
    ) -> tuple[int, int]:
        """Delete the events that still equal the lake's; return the numbers of deleted and of kept events.

        Args:
            keys: the result of ``keys_of``.
            action: the audit record.
            per_second: approximate maximum of deleted events a second.
            on_deleted: called from time to time with the number of processed keys.
        """
        return self._runner.run(self._delete(keys, action, per_second, on_deleted))

    def drop(
        self, leaf: str, before: datetime, compared: Content, action: tuple[str, str, Mapping[str, Any]]
    ) -> DroppedPartition | KeptPartition:
        """Drop a partition if it contains exactly the events that were compared with the lake.

        Args:
            leaf: the partition's name.
            before: all its events must be published before this time.
            compared: the lake's content of the partition.
            action: actor, reason and selection for the audit.
        """
        return self._runner.run(self._drop(leaf, before, compared, action))

    async def _drop(
        self, leaf: str, before: datetime, compared: Content, action: tuple[str, str, Mapping[str, Any]]
    ) -> DroppedPartition | KeptPartition:
        # Each statement must see all earlier commits, above all the last statement under its lock.
        with translated():
            async with self._connection.transaction(isolation="read_committed"):
                await self._connection.execute(_READ_ALL)
                content = for_leaf(_SQL["all_content"], _TABLE, leaf)
                (row,) = await self._connection.fetch(content, timeout=_DROP_SECONDS_MAX)
                if _content_of(row) != compared:
                    return KeptPartition(name=leaf, reason="its events differ from those in the lake")
                number = await self._begin(*action)
                drop = (DROP_LEAF, leaf, before, number)
                (row,) = await self._connection.fetch(*drop, timeout=_DROP_SECONDS_MAX)
                await self._fetch(_SQL["finish"], number, "done" if row["dropped"] else "refused")
        return dropped_leaf(leaf, row)

    async def _begin(self, actor: str, reason: str, selection: Mapping[str, Any]) -> int:
        rows = await self._fetch(_SQL["begin"], actor, reason, json.dumps(selection, default=str))
        return int(rows[0]["id"])

    async def _altered(self, keys: pa.Table) -> str | None:
        for part in slices(keys, rows=DELETE_ROWS, size=_DELETE_BYTES):
            if rows := await self._fetch(_SQL["altered"], *_lists(part)):
                return str(rows[0]["id"])
        return None

    async def _delete(
        self, keys: pa.Table, action: int, per_second: int, on_deleted: Callable[[int], None]
    ) -> tuple[int, int]:
        deleted = stayed = done = 0
        reported = time.monotonic()
        for part in slices(keys, rows=min(DELETE_ROWS, per_second), size=_DELETE_BYTES):
            began = time.monotonic()
            rows = await self._fetch(_SQL["delete"], *_lists(part), action)
            deleted += rows[0]["count"]
            stayed += rows[0]["stayed"]
            done += part.num_rows
            if done == keys.num_rows or time.monotonic() - reported > _PROGRESS_SECONDS:
                reported = time.monotonic()
                on_deleted(done)
            if done < keys.num_rows:
                await asyncio.sleep(max(0.0, part.num_rows / per_second - (time.monotonic() - began)))
        await self._fetch(_SQL["finish"], action, "done")
        return deleted, stayed

    async def _fetch(self, statement: str, *args: object) -> list[Any]:
        with translated():
            return list(await self._connection.fetch(statement, *args))


@contextmanager
def deletion(settings: Settings) -> Iterator[Deletion]:
    """Acquire the lock, and yield the only session that deletes events.

    Raises:
        PipelineError: another archive has the lock.
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: PostgreSQL refuses the user, or its version is not supported.
    """
    with asyncio.Runner() as runner:
        pool = runner.run(open_pool(settings, purpose="archive", hints=WORKER_HINTS))
        try:
            runner.run(check_version(pool))
            connection = runner.run(_acquire(pool))
            try:
                yield Deletion(runner, connection)
            finally:
                runner.run(_release(pool, connection))
        finally:
            pool.terminate()


async def _acquire(pool: asyncpg.Pool) -> asyncpg.Connection:
    with translated():
        connection = await pool.acquire()
        if not await connection.fetchval(_SQL["lock"]):
            raise PipelineError(
                "another archive is running on this outbox; wait until it ends (pg_stat_activity shows it"
                " as 'sea_mq_worker archive')"
            )
    return connection


async def _release(pool: asyncpg.Pool, connection: asyncpg.Connection) -> None:
    """End the session, which releases the lock."""
    connection.terminate()
    await pool.release(connection)


def _content_of(row: Any) -> Content:
    return Content(row["rows"], int(row["left_sum"]), int(row["right_sum"]))


def _lists(keys: pa.Table) -> tuple[list[Any], ...]:
    return tuple(keys.column(name).to_pylist() for name in ("id", "published_at", "digest"))


_SQL = load_queries(
    "pipeline_archive",
    *("chunks", "content", "others", "all_content", "lock", "begin", "finish", "altered", "delete"),
)
