"""Prune: delete old finished rows, by whole partitions or by ranges of pages.

Each function takes a pool that was opened with ``OPERATOR_HINTS``, and raises what ``translated`` raises.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import asyncpg

from sea_mq_worker.errors import ContractError
from sea_mq_worker.operators.changes import recorded
from sea_mq_worker.operators.records import Side
from sea_mq_worker.operators.tables import SQL
from sea_mq_worker.postgres.errors import TableMissingError
from sea_mq_worker.postgres.partitions import (
    DROP_LEAF,
    LEAVES,
    REFERENCES,
    DroppedPartition,
    KeptPartition,
    LeafPartition,
    PageRange,
    dropped_leaf,
    for_leaf,
    leaf_of,
    ranges,
)
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout

OnProgress: TypeAlias = Callable[[int, int, int], None]
"""Receives the number of finished pages, of all pages, and of rows changed so far."""

OnPartition: TypeAlias = Callable[[DroppedPartition | KeptPartition], None]
"""Receives each partition whose time is over, dropped or kept."""

_PAGES = 500
_GONE = MappingProxyType({"count": 0, "referenced": 0, "rows": 0})
"""Result for a partition that another session has dropped."""
_TABLES = MappingProxyType({"outbox": "outbox_events", "inbox": "inbox_messages"})
_UNREFERENCED = "old.ctid IS NULL"
"""Condition in the statements that stands for those of the foreign keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key that keeps rows; ``condition``: by which a row ``old`` is referenced."""

    name: str
    relation: str
    condition: str

    def __str__(self) -> str:
        return f"{self.name} of {self.relation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Referenced:
    """Finished rows that stay because foreign keys reference them: their number, and the constraints."""

    count: int = 0
    by: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.count} stay, referenced by {', '.join(self.by)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """Rows that a prune would delete, counted in ``pages`` of the table's ``pages_of``.

    Attributes:
        count: number of rows.
        stay: finished rows that it would not delete.
        partitions: partitions that would be dropped whole; ``count`` includes their rows.
    """

    count: int
    pages: int
    pages_of: int
    partitions: Sequence[str] = ()
    stay: Referenced = Referenced()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """Result of a prune.

    Attributes:
        deleted: number of rows, including those of dropped partitions.
        dropped: partitions that were dropped whole.
        stay: finished rows that it did not delete.
    """

    deleted: int
    dropped: Sequence[DroppedPartition] = ()
    stay: Referenced = Referenced()


def _ignore(*_progress: object) -> None: ...


async def prune(
    pool: asyncpg.Pool,
    side: Side,
    before: datetime,
    *,
    actor: str,
    reason: str,
    cap: int | None = None,
    on_progress: OnProgress = _ignore,
    on_partition: OnPartition = _ignore,
) -> PruneResult:
    """Delete events published, or messages processed or closed, before a time; others stay, however old.

    A message that is delivered again after its row is gone has its effect again: keep rows of the inbox
    longer than the streams keep messages. A prune stops after ``cap`` rows plus at most a range of pages, and
    drops no larger partition.
    """
    selection = {"before": before.isoformat()}
    action: Literal["prune_outbox", "prune_inbox"] = "prune_outbox" if side == "outbox" else "prune_inbox"
    async with recorded(pool, action, selection, actor=actor, reason=reason) as number:
        table = await _open(pool, side, before)
        pages, deleted, stay = 0, 0, 0
        dropped: list[DroppedPartition] = []
        for leaf in table.leaves:
            if leaf.is_over(before) and await table.fits(leaf, None if cap is None else cap - deleted):
                result = await table.drop(leaf, number)
                on_partition(result)
                if isinstance(result, DroppedPartition):
                    dropped.append(result)
                    pages, deleted = pages + leaf.pages, deleted + result.events
                    on_progress(pages, table.pages, deleted)
                    continue
            for some in ranges(leaf, _PAGES):
                if cap is not None and deleted >= cap:
                    break
                deleted += (await table.run(f"prune_{side}", some, number))["count"]
                if table.keys:
                    stay += (await table.run(f"count_{side}", some))["referenced"]
                pages += some.end - some.first
                on_progress(pages, table.pages, deleted)
    return PruneResult(deleted=deleted, dropped=dropped, stay=table.referenced(stay))


async def count_prunable(
    pool: asyncpg.Pool,
    side: Side,
    before: datetime,
    *,
    should_continue: Callable[[], bool],
    on_progress: OnProgress = _ignore,
) -> Prunable:
    """Count the rows that ``prune`` would delete, until ``should_continue`` returns False."""
    table = await _open(pool, side, before)
    pages, count, stay = 0, 0, 0
    whole: list[str] = []
    for leaf in table.leaves:
        is_whole = leaf.is_over(before) and not table.keys
        for some in ranges(leaf, _PAGES):
            if not should_continue():
                is_whole = False
                break
            row = await table.run(f"count_{side}", some)
            pages, count, stay = pages + some.end - some.first, count + row["count"], stay + row["referenced"]
            is_whole = is_whole and row["count"] == row["rows"]
            on_progress(pages, table.pages, count)
        if is_whole:
            whole.append(leaf.name)
    kept = table.referenced(stay)
    return Prunable(count=count, pages=pages, pages_of=table.pages, partitions=whole, stay=kept)


async def foreign_keys(pool: asyncpg.Pool, table: str) -> Sequence[ForeignKey]:
    """Return the foreign keys that keep rows of a table from being deleted.

    Raises:
        ContractError: the login may not read the table of one of them, and so not tell which rows it keeps.
    """
    keys = []
    for row in await fetch(pool, REFERENCES, table):
        key = ForeignKey(name=row["name"], relation=row["relation"], condition=row["condition"])
        if not row["may_read"]:
            raise ContractError(
                f"foreign key {key} keeps rows of {table}: grant SELECT on {key.relation} to this login"
            )
        keys.append(key)
    return keys


async def _open(pool: asyncpg.Pool, side: Side, before: datetime) -> "_Table":
    leaves = [leaf_of(row) for row in await fetch(pool, LEAVES, _TABLES[side])]
    return _Table(pool, _TABLES[side], before, leaves, await foreign_keys(pool, _TABLES[side]))


@dataclass(frozen=True, slots=True)
class _Table:
    """A table whose rows from before a time are pruned or counted."""

    pool: asyncpg.Pool
    name: str
    before: datetime
    leaves: Sequence[LeafPartition]
    keys: Sequence[ForeignKey]

    @property
    def pages(self) -> int:
        return sum(leaf.pages for leaf in self.leaves)

    def referenced(self, count: int) -> Referenced:
        return Referenced(count=count, by=tuple(map(str, self.keys)))

    async def fits(self, leaf: LeafPartition, room: int | None) -> bool:
        """Return whether a partition has no more rows than may still be deleted."""
        if room is None:
            return True
        rows = 0
        for some in ranges(leaf, _PAGES):
            rows += (await self.run("count_outbox", some, referenced=False))["rows"]
            if rows > room:
                return False
        return room > 0

    async def drop(self, leaf: LeafPartition, action: int) -> DroppedPartition | KeptPartition:
        """Drop a partition if all its rows may be deleted; checking them needs the long time-out."""
        if self.keys:
            return KeptPartition(name=leaf.name, reason=f"its rows may be referenced by {self.keys[0]}")
        try:
            [row] = await fetch_with_long_timeout(self.pool, DROP_LEAF, leaf.name, self.before, action)
        except TableMissingError:
            return KeptPartition(name=leaf.name, reason="another session has dropped it")
        return dropped_leaf(leaf.name, row)

    async def run(self, name: str, pages: PageRange, *action: int, referenced: bool = True) -> Any:
        """Run a statement on a range of pages of one leaf; ``referenced``: heed the foreign keys."""
        statement = for_leaf(SQL[name].sql, self.name, pages.leaf)
        if self.keys and referenced:
            statement = statement.replace(_UNREFERENCED, " OR ".join(key.condition for key in self.keys))
        try:
            [row] = await fetch(self.pool, statement, pages.first, pages.end, self.before, *action)
        except TableMissingError:
            if pages.leaf == self.name:
                raise
            return _GONE
        return row
