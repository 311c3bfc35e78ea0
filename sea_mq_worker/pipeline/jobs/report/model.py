"""A report's figures for a period: small enough to print, without payloads or ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["outbox", "inbox"]

AGES = ("under 1 minute", "1 to 10 minutes", "10 to 60 minutes", "1 to 24 hours", "over 1 day")
"""Age classes of the backlog."""

ATTEMPTS_MAX = 20
"""Events with more attempts count as having this number."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Counts of one bin; an event counts in each field by the time that the field names."""

    at: datetime
    written: int = 0
    published: int = 0
    received: int = 0
    processed: int = 0
    outbox_retried: int = 0
    """Published after more than one attempt."""
    inbox_retried: int = 0
    """Processed after more than one attempt."""


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Seconds from occurred to published, or received to processed; ``at`` None: whole period."""

    way: Way
    at: datetime | None
    count: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Attempts:
    """Number of events that were published or processed after this number of attempts."""

    way: Way
    attempts: int
    count: int


@dataclass(frozen=True, slots=True)
class Dead:
    """DEAD events written in the period, grouped by the beginning of their last error."""

    reason: str
    event_type: str
    count: int


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of the period, grouped by reason and original subject."""

    reason: str
    subject: str
    count: int
    latest: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterBin:
    """Dead letters of one reason in one bin."""

    at: datetime
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """An ordering key or event type: events written in the period, and bytes of their payloads."""

    name: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Shares:
    """The largest shares, and the number of distinct values."""

    largest: Sequence[Share]
    distinct: int


@dataclass(frozen=True, slots=True)
class BacklogCount:
    """Unfinished rows at the snapshot, regardless of the period, by state and age class."""

    way: Way
    state: str
    age: str
    count: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class StreamBin:
    """Landed messages, by context and the time when the stream stored them."""

    at: datetime
    context: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums of the period."""

    written: int
    written_bytes: int
    published: int
    outbox_retried: int
    dead: int
    received: int
    processed: int
    inbox_retried: int
    dead_lettered: int
    """Messages of the inbox that were dead-lettered."""
    archived: int
    """Events that were written in the period and are only in the archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures.

    Attributes:
        context: the bounded context of the events.
        at: time of the snapshot, by PostgreSQL's clock.
        since: the period's begin.
        until: the period's end, not included.
        bin_seconds: length of a bin.
        lake: whether the archive was read.
        dead_letter_source: the stream that dead letters were read from; None: the inbox table.
    """

    context: str
    at: datetime
    since: datetime
    until: datetime
    bin_seconds: int
    lake: bool
    dead_letter_source: str | None
    totals: Totals
    bins: Sequence[Bin]
    latencies: Sequence[LatencyFigures]
    attempts: Sequence[Attempts]
    dead: Sequence[Dead]
    dead_letters: Sequence[DeadLetters]
    dead_letter_count: int
    dead_letter_bins: Sequence[DeadLetterBin]
    keys: Shares
    types: Shares
    backlog: Sequence[BacklogCount]
    stream_bins: Sequence[StreamBin]

    def latency(self, way: Way) -> LatencyFigures | None:
        """Return the percentiles of the whole period; None: nothing was published or processed in it."""
        return next((each for each in self.latencies if each.way == way and each.at is None), None)
