"""PostgresPruning: deletes what is finished and old, range of pages after range of pages."""

from collections.abc import Callable, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.leaves import LEAVES, Leaf, PageRange, in_leaf, leaf_of, ranges
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.adapters.postgres.records import Prunable

_PAGES = 500
_TABLES = MappingProxyType({"outbox": "outbox_events", "inbox": "inbox_messages"})

OnProgress: TypeAlias = Callable[[int, int, int], None]
"""Is told how much is done, of how much, and how many rows were changed."""


def nobody(_done: int, _total: int, _changed: int) -> None:
    """Tell nobody of progress."""


class PostgresPruning:
    """Deletion of published events and processed messages; each method raises what ``translated`` raises."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``."""
        self._pool = pool
        self._sql = load_queries("prune", "outbox", "inbox", "count_outbox", "count_inbox")

    async def prune(
        self, side: str, before: datetime, *, action: int, cap: int | None, on_progress: OnProgress
    ) -> int:
        """Delete what ended before a time on the side of ``outbox`` or ``inbox``; return how many rows.

        Args:
            side: the table.
            before: published, processed or closed earlier.
            action: the audit's record, which counts them.
            cap: stop after so many, and at most a range of pages more.
            on_progress: is told after each range.
        """
        leaves = await self._leaves(side)
        done, total, deleted = 0, _pages(leaves), 0
        for pages in ranges(leaves, _PAGES):
            deleted += await self._in(side, side, pages, before, action)
            done += pages.end - pages.first
            on_progress(done, total, deleted)
            if cap is not None and deleted >= cap:
                break
        return deleted

    async def count(
        self, side: str, before: datetime, *, go_on: Callable[[], bool], on_progress: OnProgress
    ) -> Prunable:
        """Count what ``prune`` would delete, for as long as ``go_on`` says."""
        leaves = await self._leaves(side)
        done, total, count = 0, _pages(leaves), 0
        for pages in ranges(leaves, _PAGES):
            if not go_on():
                break
            count += await self._in(side, f"count_{side}", pages, before)
            done += pages.end - pages.first
            on_progress(done, total, count)
        return Prunable(count=count, pages=done, pages_of=total)

    async def _leaves(self, side: str) -> list[Leaf]:
        return [leaf_of(row) for row in await fetch(self._pool, LEAVES, _TABLES[side])]

    async def _in(self, side: str, name: str, pages: PageRange, *args: object) -> int:
        statement = in_leaf(self._sql[name], _TABLES[side], pages.leaf)
        return int((await fetch(self._pool, statement, pages.first, pages.end, *args))[0]["count"])


def _pages(leaves: Sequence[Leaf]) -> int:
    return sum(leaf.pages for leaf in leaves)
