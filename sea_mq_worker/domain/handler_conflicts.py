"""Conflicts between two handlers that would share one inbox."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ONE, _REST = "*", ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledDurable:
    """A durable and the handler that gets its messages; ``subjects`` are its filters, wildcards included."""

    stream: str
    durable: str
    handler: str
    subjects: tuple[str, ...]


def conflicts(
    own: Sequence[HandledDurable], others: Sequence[HandledDurable]
) -> Iterator[tuple[HandledDurable, HandledDurable]]:
    """Find subjects that are consumed twice, by different durables for different handlers.

    With one inbox, each message reaches only one of the two handlers. A durable that this worker consumes too
    is no conflict: its handler is being changed.
    """
    durables = {(one.stream, one.durable) for one in own}
    for one in own:
        for other in others:
            if other.handler == one.handler or (other.stream, other.durable) in durables:
                continue
            if one.stream == other.stream and any(
                overlap(mine, theirs) for mine in one.subjects for theirs in other.subjects
            ):
                yield one, other


def overlap(one: str, other: str) -> bool:
    """Return whether some subject matches both patterns: ``*`` is one token, a last ``>`` one or more."""
    ours, theirs = one.split("."), other.split(".")
    for place in range(max(len(ours), len(theirs))):
        if place >= len(ours) or place >= len(theirs):
            return False
        pair = {ours[place], theirs[place]}
        if _REST in pair:
            return True
        if len(pair) > 1 and _ONE not in pair:
            return False
    return True
