"""Leaves: the relations that hold a table's rows (the table itself unless it is partitioned).

Pages and row positions belong to one relation, so a table is read by pages leaf after leaf.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition

_SQL = load_queries("leaves")

LEAVES = _SQL["leaves"]
"""The statement that lists leaves; ``$1`` is the table."""

REFERENCES = _SQL["references"]
"""The statement that lists the foreign keys that keep rows; ``$1`` is the table."""

DROP_LEAF = _SQL["drop_leaf"]
"""The statement that drops a leaf of the outbox if all its events were published before ``$2``."""


@dataclass(frozen=True, slots=True)
class LeafPartition:
    """A relation that holds rows.

    Attributes:
        name: quoted for SQL, relative to the search path of the worker's sessions.
        pages: number of pages.
        until: end of the range of its ids; None: no range, or no end.
    """

    name: str
    pages: int
    until: datetime | None = None

    def is_over(self, before: datetime) -> bool:
        """Return whether all its ids are older than ``before``."""
        return self.until is not None and self.until <= before


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages of a leaf from ``first`` up to, but without, ``end``."""

    leaf: str
    first: int
    end: int


def leaf_of(row: Any) -> LeafPartition:
    return LeafPartition(row["name"], row["pages"], row["until_at"])


def dropped_leaf(name: str, row: Any) -> DroppedPartition | KeptPartition:
    if row["dropped"]:
        return DroppedPartition(name=name, events=row["count"])
    return KeptPartition(name=name, reason=row["reason"])


def for_leaf(statement: str, table: str, leaf: str) -> str:
    """Return a statement on a table as a statement on one of its leaves.

    Raises:
        ValueError: the statement does not name the table exactly once, followed by an alias.
    """
    if statement.count(f" {table} ") != 1:
        raise ValueError(f"the statement does not name {table} once, with an alias")
    return statement.replace(f" {table} ", f" {leaf} ")


def ranges(leaf: LeafPartition, pages: int, *, first: int = 0) -> Iterator[PageRange]:
    """Split the pages of a leaf from ``first`` on into ranges of at most ``pages``."""
    for at in range(first, leaf.pages, pages):
        yield PageRange(leaf.name, at, min(at + pages, leaf.pages))
