"""An outbox in daily partitions: the ids that name a day, the relations that hold rows, and their pages.

The range of a partition is a range of ids of version 7 (RFC 9562), which begin with their creation time in
milliseconds since 1970. Pages and row positions belong to one relation, so a table is read by pages leaf
after leaf: a leaf is a relation that holds rows, the table itself unless it is partitioned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.resources import resource_folder

PARTITIONS_AHEAD_DAYS = 7
"""Days for which the worker makes partitions in advance."""

_SQL = load_queries("partitions")

LEAVES = _SQL["leaves"]
"""The statement that lists leaves; ``$1`` is the table."""

REFERENCES = _SQL["references"]
"""The statement that lists the foreign keys that keep rows; ``$1`` is the table."""

DROP_LEAF = _SQL["drop_leaf"]
"""The statement that drops a leaf of the outbox if all its events were published before ``$2``."""

_VERSION = 7
_BITS_BEHIND = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLISECONDS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def is_uuid7(highest: UUID) -> bool:
    """Return whether ids are in the order of their creation, judged by the highest id of a table.

    Nearly all ids of another version are higher than present ids of version 7.
    """
    return highest.version == _VERSION


def min_id_at(at: datetime) -> UUID:
    """Return a lower bound of all ids created at this time or later, to the millisecond."""
    return UUID(int=max(0, (at - _EPOCH) // _MILLISECOND) << _BITS_BEHIND)


def timestamp_of(id_: UUID) -> datetime:
    """Return the creation time that an id of version 7 claims; the sender chooses the id freely."""
    return _EPOCH + min(id_.int >> _BITS_BEHIND, _MILLISECONDS_MAX) * _MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition, or the table itself if it is not partitioned.

    Attributes:
        from_at: inclusive start of the range of its ids; None: the range starts with the lowest id.
        until_at: exclusive end of that range.
        is_default: whether it holds the events of no other partition.
        bytes: size on disk, including indexes.
    """

    partition: str
    from_at: datetime | None
    until_at: datetime | None
    is_default: bool
    bytes: int


class PostgresPartitions:
    """Makes and lists partitions; see ``ports.Partitions``."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Create the missing partitions; a single table needs no right."""
        [row] = await fetch(self._pool, _SQL["exist"])
        if not row["exist"]:
            return []
        return [row["name"] for row in await fetch(self._pool, _SQL["make"], days_ahead)]

    async def all(self) -> Sequence[Partition]:
        """List partitions, the oldest first, the default partition last."""
        return [Partition(**row) for row in await fetch(self._pool, _SQL["list"])]


def partitioning_script() -> str:
    """Return the SQL that divides the outbox; psql can also run it."""
    return (resource_folder("sql") / "partitions.sql").read_text(encoding="utf-8")


class LeafPartition(NamedTuple):
    """A leaf: its name, quoted for SQL, its number of pages, and the end of the range of its ids, if any."""

    name: str
    pages: int
    until: datetime | None = None

    def is_over(self, before: datetime) -> bool:
        """Return whether all its ids are older than ``before``."""
        return self.until is not None and self.until <= before


def leaf_of(row: Any) -> LeafPartition:
    return LeafPartition(row["name"], row["pages"], row["until_at"])


class PageRange(NamedTuple):
    """Pages of a leaf from ``first`` up to, but without, ``end``."""

    leaf: str
    first: int
    end: int


def ranges(leaf: LeafPartition, pages: int, *, first: int = 0) -> Iterator[PageRange]:
    """Split the pages of a leaf from ``first`` on into ranges of at most ``pages``."""
    for at in range(first, leaf.pages, pages):
        yield PageRange(leaf.name, at, min(at + pages, leaf.pages))


def for_leaf(statement: str, table: str, leaf: str) -> str:
    """Return a statement on a table, which it names once and with an alias, as one on a leaf of the table."""
    if statement.count(f" {table} ") != 1:
        raise ValueError(f"the statement does not name {table} once, with an alias")
    return statement.replace(f" {table} ", f" {leaf} ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPartition:
    """A partition that was dropped whole, with its number of events."""

    name: str
    events: int

    def __str__(self) -> str:
        return f"dropped partition {self.name}, {self.events:,} events"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPartition:
    """A partition that was not dropped although its time is over, with the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"partition {self.name} is deleted row by row: {self.reason}"


def dropped_leaf(name: str, row: Any) -> DroppedPartition | KeptPartition:
    if row["dropped"]:
        return DroppedPartition(name=name, events=row["count"])
    return KeptPartition(name=name, reason=row["reason"])
