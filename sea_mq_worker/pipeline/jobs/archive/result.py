"""What an archive tells: where it is, and what it did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """What an archive found and did.

    Attributes:
        found: events that were to be archived, after an unfinished batch was done with.
        unfit: events that stay in the outbox, since a time of theirs is beyond the years 2 to 9998.
        batches: committed to the lake.
        archived: events in them.
        deleted: events deleted from the outbox, those of unfinished batches of an earlier run included.
        stayed: events that are in the lake and were replayed or changed before they could be deleted.
        resumed: the number of the first unfinished batch, taken up; None: there was none.
        dropped: partitions that went whole, with their events among those deleted.
    """

    found: int = 0
    unfit: int = 0
    batches: int = 0
    archived: int = 0
    deleted: int = 0
    stayed: int = 0
    resumed: int | None = None
    dropped: tuple[DroppedPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveProgress:
    """Where an archive is.

    Attributes:
        batch: its number in the lake.
        rows: events of the batch, all in the lake and verified.
        gone: of these, done with in the outbox.
        done: events of this run's batches so far.
        total: events found; 0 while an unfinished batch is taken up.
        partition: what has just become of one that could be dropped whole; None: nothing.
    """

    batch: int
    rows: int
    gone: int
    done: int
    total: int
    partition: DroppedPartition | KeptPartition | None = None


OnProgress: TypeAlias = Callable[[ArchiveProgress], None]
