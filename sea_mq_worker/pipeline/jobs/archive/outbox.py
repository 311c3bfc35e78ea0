"""The archive's hands on the outbox: one archive at a time, what is to go, and its deletion."""

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
from sea_mq_worker.pipeline.sources.tables.query import FIRST_TIME, LAST_TIME
from sea_mq_worker.settings import Settings

DELETE_ROWS = 2000
"""Events that one transaction deletes: some ten milliseconds of the server."""

_DELETE_BYTES = 8 * 2**20
"""Their content, since the server computes digests of it."""

_CHUNK_PAGES = 256
_TABLE = "outbox_events"

_DROP_SECONDS_MAX = 3600
"""Longest for reading a partition that is about to be dropped; nobody waits for it meanwhile."""

_READ_ALL = f"SET LOCAL enable_seqscan = on; SET LOCAL statement_timeout = '{_DROP_SECONDS_MAX}s'"
_TELL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """What there is to archive in a leaf of the outbox, which is all of it or one of its partitions.

    Attributes:
        leaf: its name.
        fit: events.
        unfit: events that stay, since a time of theirs is beyond what the lake can hold.
        batches: each with a bounded number of events.
        may_go: it is a partition whose time is over, and holds nothing else.
    """

    leaf: str
    fit: int
    unfit: int
    batches: tuple[PageRange, ...]
    may_go: bool


def plan(held: Snapshot, before: datetime, batch_rows: int) -> list[LeafPlan]:
    """Look where the events are; they can only become fewer, as ``before`` is past."""
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
    """Ask PostgreSQL itself what a batch must hold."""
    statement = for_leaf(_SQL["content"], _TABLE, pages.leaf)
    (row,) = held.rows(statement, before, FIRST_TIME, LAST_TIME, pages.first, pages.end)
    return _content_of(row)


class Deletion:
    """Deletes archived events, under the lock that keeps other archives away."""

    def __init__(self, runner: asyncio.Runner, connection: asyncpg.Connection) -> None:
        self._runner = runner
        self._connection = connection

    def check_lock(self) -> None:
        """Make sure that the session of the lock is alive.

        Raises:
            StoreUnavailableError: it is not, and neither is the lock.
        """
        self._runner.run(self._fetch("SELECT 1"))

    def begin(self, actor: str, reason: str, selection: Mapping[str, Any]) -> int:
        """Open a record in the audit, and return its number."""
        return self._runner.run(self._begin(actor, reason, selection))

    def altered(self, keys: pa.Table) -> str | None:
        """Return the id of an event that is not what the lake has of it, though it is of the same time."""
        return self._runner.run(self._altered(keys))

    def delete(
        self, keys: pa.Table, action: int, *, per_second: int, on_deleted: Callable[[int], None]
    ) -> tuple[int, int]:
        """Delete the events that are still exactly what the lake has; return how many, and how many stay.

        Args:
            keys: as of ``keys_of``.
            action: the audit's record.
            per_second: pace.
            on_deleted: is told how many keys are done, now and then.
        """
        return self._runner.run(self._delete(keys, action, per_second, on_deleted))

    def drop(
        self, leaf: str, before: datetime, compared: Content, action: tuple[str, str, Mapping[str, Any]]
    ) -> DroppedPartition | KeptPartition:
        """Drop a partition if it holds exactly what was compared with the lake, and all of it may go.

        Args:
            leaf: its name.
            before: published before.
            compared: what the lake has of it.
            action: who asks for it, why, and the selection, for the audit.
        """
        return self._runner.run(self._drop(leaf, before, compared, action))

    async def _drop(
        self, leaf: str, before: datetime, compared: Content, action: tuple[str, str, Mapping[str, Any]]
    ) -> DroppedPartition | KeptPartition:
        # Each statement must see what was committed before it, above all the last, under its lock.
        with translated():
            async with self._connection.transaction(isolation="read_committed"):
                await self._connection.execute(_READ_ALL)
                content = for_leaf(_SQL["all_content"], _TABLE, leaf)
                (row,) = await self._connection.fetch(content, timeout=_DROP_SECONDS_MAX)
                if _content_of(row) != compared:
                    return KeptPartition(name=leaf, reason="it holds other events than the lake has of it")
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
        told = time.monotonic()
        for part in slices(keys, rows=min(DELETE_ROWS, per_second), size=_DELETE_BYTES):
            began = time.monotonic()
            rows = await self._fetch(_SQL["delete"], *_lists(part), action)
            deleted += rows[0]["count"]
            stayed += rows[0]["stayed"]
            done += part.num_rows
            if done == keys.num_rows or time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
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
    """Take the lock, and provide the one session that deletes.

    Raises:
        PipelineError: another archive has the lock.
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: it refuses the user, or is of another version.
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
                "another archive is at work on this outbox; wait until it is done (pg_stat_activity shows it"
                " as 'sea_mq_worker archive')"
            )
    return connection


async def _release(pool: asyncpg.Pool, connection: asyncpg.Connection) -> None:
    """End the session, and the lock with it."""
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
