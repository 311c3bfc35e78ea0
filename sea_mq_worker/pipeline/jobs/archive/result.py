"""Progress and result of an archive."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sea_mq_worker.domain.read_models import DroppedPartition, KeptPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """Result of an archive.

    Attributes:
        found: events to archive, counted after unfinished batches were finished.
        unfit: events that stay in the outbox, because one of their times is outside the years 2 to 9998.
        batches: batches committed to the lake.
        archived: events in these batches.
        deleted: events deleted from the outbox, including unfinished batches of an earlier run.
        stayed: archived events that stay in the outbox, because they were replayed or changed in the
            meantime.
        resumed: number of the first unfinished batch of an earlier run; None: there was none.
        dropped: dropped partitions; their events are included in ``deleted``.
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
    """Progress of an archive.

    Attributes:
        batch: the batch's number in the lake.
        rows: events of the batch, all verified in the lake.
        gone: events of the batch that are processed in the outbox.
        done: events of this run's batches so far.
        total: events to archive; 0 while an unfinished batch of an earlier run is finished.
        partition: outcome of an attempt to drop a partition; None: there was no attempt.
    """

    batch: int
    rows: int
    gone: int
    done: int
    total: int
    partition: DroppedPartition | KeptPartition | None = None


OnProgress: TypeAlias = Callable[[ArchiveProgress], None]
