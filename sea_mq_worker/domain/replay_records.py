"""A replay as operators see it: its record, the chosen events, its progress and its result."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sea_mq_worker.domain.filters import OutboxFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay that has begun.

    Attributes:
        id: id of its record in ``operator_actions``.
        at: when the replay began; None: just now.
        through: all events up to this seq are done.
        replayed: number of events put back so far.
    """

    id: int
    which: OutboxFilter
    at: datetime | None = None
    through: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """An event to put back; ``published_at`` is None for a DEAD one."""

    id: UUID
    seq: int
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        matched: number of events that could be replayed; cap + 1 means more than the cap.
        replayed: number of events put back; 0 in a dry run, and if more than the cap matched.
        last_published_at: when the last of them was published; None: all were DEAD.
    """

    matched: int
    replayed: int
    last_published_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """Progress of a replay.

    Attributes:
        action: id of its record in ``operator_actions``.
        done: number of events of ``total`` that this run has passed.
        replayed: number of events put back, including those of earlier runs.
        waiting: number of events put back but not yet claimed, for which the replay waits; 0: it continues.
    """

    action: int
    done: int
    total: int
    replayed: int
    waiting: int
