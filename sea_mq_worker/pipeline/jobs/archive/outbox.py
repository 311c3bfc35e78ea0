"""The archive's access to the outbox: lock, plan, content and deletion of archived events."""

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

from sea_mq_worker.connections import open_pool
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.archive.digest import Content
from sea_mq_worker.pipeline.snapshot import Snapshot
from sea_mq_worker.pipeline.sources.tables.source import FIRST_TIME, LAST_TIME
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.migrations import check_owner, check_version
from sea_mq_worker.postgres.partitions import (
    DROP_LEAF,
    LEAVES,
    DroppedPartition,
    KeptPartition,
    PageRange,
    dropped_leaf,
    for_leaf,
    leaf_of,
)
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

_DELETE_ROWS = 2000
"""Cap on the events that one transaction deletes, which takes the server some ten milliseconds."""

_DELETE_BYTES = 8 * 2**20
"""Cap on the content of these events in bytes, because the server computes digests of it."""

_RUN_PAGES = 256
_TABLE = "outbox_events"

_DROP_SECONDS_MAX = 3600
"""Time limit for reading a partition before its drop; no other session waits for this read."""

# Each statement must see all earlier commits, above all the last statement under its lock.
_BEGIN_DROP = f"""BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL enable_seqscan = on; SET LOCAL statement_timeout = '{_DROP_SECONDS_MAX}s'"""
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
    plans = []
    for leaf in map(leaf_of, held.rows(LEAVES, _TABLE)):
        statement = for_leaf(_SQL["batches"], _TABLE, leaf.name)
        rows = held.rows(statement, before, FIRST_TIME, LAST_TIME, _RUN_PAGES, batch_rows)
        rows_all, fit, unfit = (sum(row[name] for row in rows) for name in ("rows", "fit", "unfit"))
        batches = tuple(PageRange(leaf.name, row["first"], row["end"]) for row in rows if row["fit"])
        plans.append(LeafPlan(leaf.name, fit, unfit, batches, leaf.is_over(before) and fit == rows_all))
    return plans


def content(held: Snapshot, before: datetime, pages: PageRange) -> Content:
    """Query from PostgreSQL the content that a batch must have."""
    statement = for_leaf(_SQL["content"], _TABLE, pages.leaf)
    (row,) = held.rows(statement, before, FIRST_TIME, LAST_TIME, pages.first, pages.end)
    return _content_of(row)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes archived events under the lock that excludes other archives; every deletion is audited.

    Each method raises the errors of ``translated``, also if the session has ended, and with it the lock.
    """

    runner: asyncio.Runner
    connection: asyncpg.Connection
    actor: str
    reason: str

    def check_lock(self) -> None:
        """Check that the session with the lock is alive."""
        self._fetch("SELECT 1")

    def altered(self, keys: pa.Table) -> str | None:
        """Return the ID of an event that differs from the lake although it was published at the same time."""
        for part in _parts(keys, _DELETE_ROWS):
            if rows := self._fetch(_SQL["altered"], *_lists(part)):
                return str(rows[0]["id"])
        return None

    def delete(
        self,
        keys: pa.Table,
        selection: Mapping[str, Any],
        *,
        per_second: int,
        on_deleted: Callable[[int], None],
    ) -> tuple[int, int]:
        """Delete the events that still equal the lake's; return the numbers of deleted and of kept events.

        ``keys`` is the result of ``keys_of``; ``on_deleted`` is called from time to time with the number.
        """
        action = self._begin(selection)
        deleted = stayed = 0
        due = reported = time.monotonic()
        for part in _parts(keys, min(_DELETE_ROWS, per_second)):
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + part.num_rows / per_second
            (row,) = self._fetch(_SQL["delete"], *_lists(part), action)
            deleted, stayed = deleted + row["count"], stayed + row["stayed"]
            if time.monotonic() - reported > _PROGRESS_SECONDS:
                reported = time.monotonic()
                on_deleted(deleted)
        self._fetch(_SQL["finish"], action, "done")
        on_deleted(deleted)
        return deleted, stayed

    def drop(
        self, leaf: str, before: datetime, expected: Content, selection: Mapping[str, Any]
    ) -> DroppedPartition | KeptPartition:
        """Drop a partition whose events were published before a time, if its content equals the lake's."""
        self._execute(_BEGIN_DROP)
        (row,) = self._fetch(for_leaf(_SQL["all_content"], _TABLE, leaf), timeout=_DROP_SECONDS_MAX)
        if _content_of(row) != expected:
            self._execute("ROLLBACK")
            return KeptPartition(name=leaf, reason="its events differ from those in the lake")
        action = self._begin(selection)
        (row,) = self._fetch(DROP_LEAF, leaf, before, action, timeout=_DROP_SECONDS_MAX)
        self._fetch(_SQL["finish"], action, "done" if row["dropped"] else "refused")
        self._execute("COMMIT")
        return dropped_leaf(leaf, row)

    def _begin(self, selection: Mapping[str, Any]) -> int:
        given = json.dumps(selection, default=str)
        return int(self._fetch(_SQL["begin"], self.actor, self.reason, given)[0]["id"])

    def _fetch(self, statement: str, *args: object, timeout: float | None = None) -> list[Any]:
        with translated():
            return list(self.runner.run(self.connection.fetch(statement, *args, timeout=timeout)))

    def _execute(self, statements: str) -> None:
        with translated():
            self.runner.run(self.connection.execute(statements))


@contextmanager
def deletion(settings: Settings, *, actor: str, reason: str) -> Iterator[Deletion]:
    """Acquire the lock, and yield the only session that deletes events; its end releases the lock.

    Raises:
        PipelineError: another archive has the lock.
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: PostgreSQL refuses the user, its version is not supported, or the tables are another
            context's.
    """
    with asyncio.Runner() as runner:
        pool = runner.run(open_pool(settings, purpose="archive"))
        try:
            yield Deletion(runner, runner.run(_lock(pool, settings.context)), actor, reason)
        finally:
            pool.terminate()


async def _lock(pool: asyncpg.Pool, context: str) -> asyncpg.Connection:
    await check_version(pool)
    await check_owner(pool, context)
    with translated():
        connection = await pool.acquire()
        if await connection.fetchval(_SQL["lock"]):
            return connection
    raise PipelineError(
        "another archive is running on this outbox; wait until it ends (pg_stat_activity shows it"
        " as 'sea_mq_worker archive')"
    )


def _content_of(row: Any) -> Content:
    return Content(row["rows"], int(row["left_sum"]), int(row["right_sum"]))


def _parts(keys: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Split the result of ``keys_of`` into parts of at most ``rows`` rows and _DELETE_BYTES, or one row."""
    start, room = 0, _DELETE_BYTES
    for at, weight in enumerate(keys.column("bytes").to_pylist()):
        if at > start and (at - start == rows or weight > room):
            yield keys.slice(start, at - start)
            start, room = at, _DELETE_BYTES
        room -= weight
    if start < keys.num_rows:
        yield keys.slice(start)


def _lists(keys: pa.Table) -> tuple[list[Any], ...]:
    return tuple(keys.column(name).to_pylist() for name in ("id", "published_at", "digest"))


_SQL = load_queries("pipeline_archive")
