"""A replay as operators see it: its record, the chosen events, its progress and its result."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sea_mq_worker.domain.read_models import OutboxFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay that has begun.

    Attributes:
        id: of its record in ``operator_actions``.
        at: when it began; None: just now.
        through: everything up to this seq is done.
        replayed: events that were put back so far.
    """

    id: int
    which: OutboxFilter
    at: datetime | None = None
    through: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """An event to put back."""

    id: UUID
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a replay found and did.

    Attributes:
        matched: events that could be replayed; one above the cap means: more than the cap.
        replayed: 0 in a dry run, and where more than the cap matched.
    """

    matched: int
    replayed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """How far a replay is.

    Attributes:
        action: its record in ``operator_actions``.
        done: events of ``total`` that are behind it in this run.
        replayed: events that it has put back, those of the runs before too.
        waiting: put back and taken by no worker yet, which the replay waits for; 0: it goes on.
    """

    action: int
    done: int
    total: int
    replayed: int
    waiting: int
