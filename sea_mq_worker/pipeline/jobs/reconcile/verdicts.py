"""What reconcile says of an id at a hop.

An id can have several findings; the worst is its verdict. Worst first: what is lost, what is not what was
sent, what nobody sent, what came too often, in the wrong order, not at all by the worker's own decision, or
too late; then what cannot be told yet or any more.
"""

from enum import StrEnum


class Verdict(StrEnum):
    """Findings, the worst first."""

    MISSING_IN_STREAM = "missing-in-stream"
    """The broker acknowledged it, and retention has not removed it, yet the stream does not hold it."""
    MISSING_IN_INBOX = "missing-in-inbox"
    """The consumer has settled it, yet the inbox shows no effect of it."""
    ALTERED = "altered"
    """Subject, body or headers of a copy differ from the row's, or the inbox recorded another content."""
    UNEXPECTED = "unexpected"
    """In the stream, though neither table nor archive has it and no prune removed it."""
    DUPLICATED = "duplicated"
    """The stream holds a further copy that no audited replay explains."""
    OUT_OF_ORDER = "out-of-order"
    """One of the fewest events of its ordering key without which all others are stored in insert order."""
    DEAD = "dead"
    """The relay gave it up, or the inbox dead-lettered it."""
    LATE = "late"
    """It took longer than the limit from its occurrence to the stream, or from there to its effect."""
    PENDING = "pending"
    """On its way: not yet published, not yet delivered, being handled, or younger than the grace."""
    EXPIRED = "expired"
    """Retention may have removed it before it was landed in the lake: it cannot be judged any more."""
    PRUNED = "pruned"
    """An operator pruned rows of its age: that there is none says nothing."""
    DELIVERED = "delivered"


LOSS = frozenset({Verdict.MISSING_IN_STREAM, Verdict.MISSING_IN_INBOX, Verdict.ALTERED})
"""What a run fails on unless told otherwise."""
