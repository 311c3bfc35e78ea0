"""The scope of a comparison, and its result: verdicts with counts and examples, latencies and notes.

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


@dataclass(frozen=True, slots=True)
class Requeue:
    """Options for putting lost events back; ``actor`` and ``reason`` are for the audit.

    Attributes:
        cap: put back no event if more than this are lost, because the settings may name another broker.
        dry_run: only count.
    """

    actor: str
    reason: str
    cap: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """Scope and output of a comparison.

    Attributes:
        lake: the lake with archive and bronze; None: only tables and streams.
        since: compare only own events created, and other messages stored, at this time or later.
        until: compare only own events created, and other messages stored, before this time.
        grace_seconds: events published or stored within this time are never missing.
        late_seconds: a hop is late above this time; None: never.
        out: a new folder for JSON lines of all IDs with another verdict than delivered; None: no files.
        requeue: put back the events that the stream lost; None: change nothing.
    """

    lake: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    grace_seconds: float = 60.0
    late_seconds: float | None = None
    out: str | None = None
    requeue: Requeue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HopLatency:
    """Seconds per hop; exact to a thousandth of the value."""

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
    rows: Mapping[str, int]
    hops: Sequence[Hop]
    notes: Sequence[str]
    requeued: Requeued | None

    def found(self, verdicts: Collection[Verdict]) -> int:
        """Count findings of these kinds over all hops."""
        return sum(hop.findings.get(verdict, 0) for hop in self.hops for verdict in verdicts)
