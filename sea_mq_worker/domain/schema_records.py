"""The database schema as operators see it: missing migrations, and partitions of the outbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """Changes that ``migrate`` would make.

    Attributes:
        version: version of the schema; 0: there is no schema.
        missing: names of the migrations that would be applied, in order.
        serves_running: workers that know ``version`` may continue afterwards.
        adopted: SDS-047's own tables that it would take over, each with its number of rows.
    """

    version: int
    missing: Sequence[str]
    serves_running: bool
    adopted: Mapping[str, int] = field(default_factory=dict)


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
