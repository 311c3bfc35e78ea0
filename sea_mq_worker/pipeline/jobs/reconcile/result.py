"""The result of a comparison: verdicts with counts and examples, latencies and notes.

An ID can have several findings; the worst finding is its verdict. The order, worst first: lost, altered,
unexpected, duplicated, out of order, dead by the worker's own decision, late; then findings that cannot be
decided yet or any more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Verdict(StrEnum):
    """Findings, worst first."""

    MISSING_IN_STREAM = "missing-in-stream"
    """The broker acknowledged the event and retention has not removed it, but it is not in the stream."""
    MISSING_IN_INBOX = "missing-in-inbox"
    """The consumer has settled the message, but the inbox shows no effect."""
    ALTERED = "altered"
    """Subject, body or headers of a copy differ from the row, or the inbox recorded other content."""
    UNEXPECTED = "unexpected"
    """The stream contains the ID, but neither table nor archive does, and no prune removed it."""
    DUPLICATED = "duplicated"
    """The stream contains another copy that no audited replay explains."""
    OUT_OF_ORDER = "out-of-order"
    """Stored out of order: removing it, and as few others as possible, would restore the order of its key."""
    DEAD = "dead"
    """The publisher marked the event DEAD, or the inbox dead-lettered the message."""
    LATE = "late"
    """The time from occurrence to the stream, or from the stream to the effect, exceeded the limit."""
    PENDING = "pending"
    """In transit: not yet published, not yet delivered, being handled, or within the grace period."""
    EXPIRED = "expired"
    """Retention may have removed the message before it was landed in the lake, so it cannot be judged."""
    PRUNED = "pruned"
    """An operator pruned rows of this age, or erased the event, so a missing row proves nothing."""
    DELIVERED = "delivered"

    @property
    def bit(self) -> int:
        """The finding's bit in a set of findings; the lowest bit is the worst, and no bit is delivered."""
        return 0 if self is Verdict.DELIVERED else 1 << list(Verdict).index(self)


def findings_of(bits: int) -> list[Verdict]:
    """Return the findings of a set, worst first."""
    return [verdict for verdict in Verdict if bits & verdict.bit] or [Verdict.DELIVERED]


LOSS = frozenset({Verdict.MISSING_IN_STREAM, Verdict.MISSING_IN_INBOX, Verdict.ALTERED})
"""Verdicts that make a run fail by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HopLatency:
    """Seconds per hop; percentiles are exact to a thousandth of the value, the longest is exact."""

    events: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Result for a hop.

    Attributes:
        name: source and target of the hop.
        ids: number of judged IDs.
        verdicts: number of IDs per verdict; the sum is ``ids``.
        findings: number of IDs per finding, including IDs with a worse verdict.
        examples: some IDs per verdict except ``delivered``, sorted.
        latency: from occurrence to stream, or from stream to effect; None: no ID passed the hop.
    """

    name: str
    ids: int
    verdicts: Mapping[Verdict, int]
    findings: Mapping[Verdict, int]
    examples: Mapping[Verdict, Sequence[str]]
    latency: HopLatency | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The compared part of a stream.

    Attributes:
        created: the stream's creation time.
        first_seq: the first message after the read.
        last_seq: the last message before the read; later messages are not judged.
        streamed: messages read from the stream.
        landed: messages read from the lake, because they left the stream.
    """

    stream: str
    created: str
    first_seq: int
    last_seq: int
    first_time: datetime | None
    last_time: datetime | None
    streamed: int
    landed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """Result of putting lost events back.

    Attributes:
        lost: number of lost IDs.
        replayed: number of events put back; 0 in a dry run, and if more than the cap are lost.
        capped: whether more rows than the cap are lost, so that none was put back.
        archived: some IDs of lost events that are only in the archive; `pipeline replay --id` puts them back.
        archived_count: number of lost events that are only in the archive.
    """

    lost: int
    replayed: int
    capped: bool
    archived: Sequence[str]
    archived_count: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Result of a comparison; ``rows`` is the number of rows read from each table, stream and lake table."""

    since: datetime | None
    until: datetime | None
    compared: Sequence[Compared]
    rows: Mapping[str, int]
    hops: Sequence[Hop]
    notes: Sequence[str]
    requeued: Requeued | None

    def found(self, verdicts: Collection[Verdict]) -> int:
        """Count findings of these kinds over all hops."""
        return sum(hop.findings.get(verdict, 0) for hop in self.hops for verdict in verdicts)
