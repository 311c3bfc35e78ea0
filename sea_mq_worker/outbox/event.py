"""An event of the outbox as its publisher has it: leased by a claim, and settled by a verdict.

Every ``match`` on a verdict ends with ``assert_never``, so that a new one is a type error until each place
decides on it. Types that nearly every event needs are tuples: one is made faster than a frozen dataclass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from sea_mq_worker.errors import RowsRefusedError
from sea_mq_worker.nats.message import Stored


class EventState(StrEnum):
    """State of an event in its lifecycle (Open Outbox, processing lifecycle)."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    PUBLISHED = "PUBLISHED"
    DEAD = "DEAD"


class OutboxEvent(NamedTuple):
    """An event leased to one publisher for one publish attempt (SDS-047 2.1, Open Outbox event model).

    ``payload`` is the JSON text exactly as PostgreSQL renders the column, so that no number passes
    through a float. ``headers`` and ``metadata`` are JSON texts. The database's rows have these fields in the
    same order.
    """

    id: str
    seq: int
    aggregate_type: str
    aggregate_id: str
    event_type: str
    event_version: int
    payload: bytes
    occurred_at: datetime | None
    """None: in no year from 1 to 9999, so that no message can say it."""
    attempts: int
    """Number of claims in this lifecycle, including this one; counted before the attempt."""
    failures: int
    """Attempts that failed because of the event or ended with the process; they decide DEAD."""
    age_seconds: float
    """Seconds since the event was due, or since its first attempt if earlier; by the database's clock."""
    attempted_seconds_ago: float
    """Seconds since the first attempt of this lifecycle; 0 on the first attempt, below 0 after the database's
    clock was set back.
    """
    correlation_id: str | None = None
    causation_id: str | None = None
    partition_key: str | None = None
    ordering_key: str | None = None
    headers: str | None = None
    metadata: str | None = None
    earlier_stream_seq: int = 0
    """Stream sequence of the copy that an earlier lifecycle published; 0: no copy."""
    withheld_bytes: int = 0
    """Size of an event that was too large to be read: payload, headers and metadata are missing."""

    def without_content(self) -> "OutboxEvent":
        """Return the event as its settlement needs it, which may wait longer than its bytes are counted."""
        return self._replace(payload=b"", headers=None, metadata=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Events leased together.

    Attributes:
        token: fencing token; a settlement under another token changes nothing.
        at: when the claim was made, by the database's clock.
        events: in insert order; events of one ordering key are an unbroken run from its head.
        more: whether another claim would probably find events at once.
        bytes: total size of the events; a withheld event counts 0.
        cut: whether the limit of bytes ended the claim before the limit of events.
        refused: ids of due events whose claim the database refuses, each with the error.
        parts: the claims that this one combines to settle them together; empty for a claim of its own.
    """

    token: str
    at: datetime
    events: tuple[OutboxEvent, ...]
    more: bool
    bytes: int = 0
    cut: bool = False
    refused: tuple[tuple[str, RowsRefusedError], ...] = ()
    parts: tuple["Claim", ...] = ()


BATCH_DEFAULT = 100
"""Events of a claim that does not say how many."""

NO_BYTES_MAX = 2**62
"""No limit in bytes: larger than any claim."""


def combined(claims: Sequence[Claim]) -> Claim:
    """Combine claims whose published events are settled by one statement."""
    if len(claims) == 1:
        return claims[0]
    events = tuple(event for claim in claims for event in claim.events)
    return Claim(token="", at=claims[0].at, events=events, more=False, parts=tuple(claims))


NOTHING_CLAIMED = Claim(token="", at=datetime.min.replace(tzinfo=UTC), events=(), more=False)


class Published(NamedTuple):
    """CLAIMED -> PUBLISHED."""

    event: OutboxEvent
    stored: Stored


@dataclass(frozen=True, slots=True)
class Postponed:
    """CLAIMED -> PENDING, due again after ``delay_seconds``; ``failed``: it costs a failure."""

    event: OutboxEvent
    error: str
    delay_seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Released:
    """CLAIMED -> PENDING without an attempt, due at once."""

    event: OutboxEvent


@dataclass(frozen=True, slots=True)
class Died:
    """CLAIMED -> DEAD."""

    event: OutboxEvent
    error: str


Verdict: TypeAlias = Published | Postponed | Released | Died


class Share(NamedTuple):
    """The ordering keys of one worker: those whose hash is ``place``, modulo ``workers``."""

    place: int
    workers: int


WHOLE = Share(0, 1)


class Reaped(NamedTuple):
    """``leases`` that were ended, and events ``brought_forward`` after the clock was set back."""

    leases: int
    brought_forward: int
