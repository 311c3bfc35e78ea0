"""The database schema as operators see it: missing migrations, and partitions of the outbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """What ``migrate`` would do.

    Attributes:
        version: that of the schema; 0 where it is not there.
        missing: names of the migrations that would be applied, in order.
        serves_running: workers that know ``version`` may go on afterwards.
    """

    version: int
    missing: Sequence[str]
    serves_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition, or the table itself where it has none.

    Attributes:
        from_at: the first moment of its ids; None: it begins with the lowest one.
        until_at: the moment behind the last.
        is_default: holds the events that no other partition is for.
        bytes: on disk, indexes included.
    """

    partition: str
    from_at: datetime | None
    until_at: datetime | None
    is_default: bool
    bytes: int
