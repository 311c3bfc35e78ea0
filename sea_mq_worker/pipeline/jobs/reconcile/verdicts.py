"""Verdicts of reconcile on an ID at a hop.

An ID can have several findings; the worst finding is its verdict. The order, worst first: lost, altered,
unexpected, duplicated, out of order, dead by the worker's own decision, late; then findings that cannot be
decided yet or any more.
"""

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
    """An operator pruned rows of this age, so a missing row proves nothing."""
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
