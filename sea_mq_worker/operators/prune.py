"""PostgresPruning: deletes old finished rows, by whole partitions or by ranges of pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import asyncpg

from sea_mq_worker.errors import ContractError
from sea_mq_worker.operators.records import (
    DroppedPartition,
    KeptPartition,
    OnPartition,
    OnProgress,
    Prunable,
    PruneResult,
    Referenced,
)
from sea_mq_worker.postgres.errors import TableMissingError
from sea_mq_worker.postgres.partitions import (
    DROP_LEAF,
    LEAVES,
    REFERENCES,
    LeafPartition,
    PageRange,
    dropped_leaf,
    for_leaf,
    leaf_of,
    ranges,
)
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout
from sea_mq_worker.postgres.queries import load_queries

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


def _referenced(count: int, keys: Sequence[ForeignKey]) -> Referenced:
    return Referenced(count=count, by=tuple(map(str, keys)))


def ignore_progress(*_progress: object) -> None:
    """Report no progress."""


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Progress of a prune or of its count."""

    pages_of: int
    on_progress: OnProgress
    pages: int = 0
    rows: int = 0

    def add(self, pages: int, rows: int) -> None:
        self.pages += pages
        self.rows += rows
        self.on_progress(self.pages, self.pages_of, self.rows)


class PostgresPruning:
    """Deletion of published events and processed messages; each method raises what ``translated`` raises."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``."""
        self._pool = pool
        self._sql = load_queries("prune")

    async def prune(
        self,
        side: str,
        before: datetime,
        *,
        action: int,
        cap: int | None,
        on_progress: OnProgress,
        on_partition: OnPartition,
    ) -> PruneResult:
        """Delete rows and count them in the audit's record ``action``; see ``PostgresOperations.prune``."""
        leaves, keys = await self._leaves(side), await foreign_keys(self._pool, _TABLES[side])
        tally = _Tally(pages_of=sum(leaf.pages for leaf in leaves), on_progress=on_progress)
        dropped: list[DroppedPartition] = []
        stay = 0
        for leaf in leaves:
            room = None if cap is None else cap - tally.rows
            if leaf.is_over(before) and await self._has_room(leaf, before, room):
                result = await self._drop(leaf, before, action, keys)
                on_partition(result)
                if isinstance(result, DroppedPartition):
                    dropped.append(result)
                    tally.add(leaf.pages, result.events)
                    continue
            for pages in ranges(leaf, _PAGES):
                if cap is not None and tally.rows >= cap:
                    break
                row = await self._in(side, side, pages, before, action, keys=keys)
                tally.add(pages.end - pages.first, row["count"])
                if keys:
                    stay += (await self._in(side, f"count_{side}", pages, before, keys=keys))["referenced"]
        return PruneResult(deleted=tally.rows, dropped=dropped, stay=_referenced(stay, keys))

    async def count(
        self,
        side: str,
        before: datetime,
        *,
        should_continue: Callable[[], bool],
        on_progress: OnProgress = ignore_progress,
    ) -> Prunable:
        """Count the rows that ``prune`` would delete, until ``should_continue`` returns False."""
        leaves, keys = await self._leaves(side), await foreign_keys(self._pool, _TABLES[side])
        tally = _Tally(pages_of=sum(leaf.pages for leaf in leaves), on_progress=on_progress)
        whole: list[str] = []
        stay = 0
        for leaf in leaves:
            is_whole = leaf.is_over(before) and not keys
            for pages in ranges(leaf, _PAGES):
                if not should_continue():
                    is_whole = False
                    break
                row = await self._in(side, f"count_{side}", pages, before, keys=keys)
                tally.add(pages.end - pages.first, row["count"])
                stay += row["referenced"]
                is_whole = is_whole and row["count"] == row["rows"]
            if is_whole:
                whole.append(leaf.name)
        return Prunable(
            count=tally.rows,
            pages=tally.pages,
            pages_of=tally.pages_of,
            partitions=whole,
            stay=_referenced(stay, keys),
        )

    async def _has_room(self, leaf: LeafPartition, before: datetime, room: int | None) -> bool:
        if room is None:
            return True
        rows = 0
        for pages in ranges(leaf, _PAGES):
            rows += (await self._in("outbox", "count_outbox", pages, before))["rows"]
            if rows > room:
                return False
        return room > 0

    async def _drop(
        self, leaf: LeafPartition, before: datetime, action: int, keys: Sequence[ForeignKey]
    ) -> DroppedPartition | KeptPartition:
        """Drop a partition if all its rows may be deleted; checking them needs the long time-out."""
        if keys:
            return KeptPartition(name=leaf.name, reason=f"its rows may be referenced by {keys[0]}")
        try:
            [row] = await fetch_with_long_timeout(self._pool, DROP_LEAF, leaf.name, before, action)
        except TableMissingError:
            return KeptPartition(name=leaf.name, reason="another session has dropped it")
        return dropped_leaf(leaf.name, row)

    async def _leaves(self, side: str) -> list[LeafPartition]:
        return [leaf_of(row) for row in await fetch(self._pool, LEAVES, _TABLES[side])]

    async def _in(
        self, side: str, name: str, pages: PageRange, *args: object, keys: Sequence[ForeignKey] = ()
    ) -> Any:
        statement = for_leaf(self._sql[name], _TABLES[side], pages.leaf)
        if keys:
            statement = statement.replace(_UNREFERENCED, " OR ".join(key.condition for key in keys))
        try:
            return (await fetch(self._pool, statement, pages.first, pages.end, *args))[0]
        except TableMissingError:
            if pages.leaf == _TABLES[side]:
                raise
            return _GONE
