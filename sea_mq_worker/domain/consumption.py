"""Durables consumed for handlers, and conflicts between two handlers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ONE, _REST = "*", ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """A durable that is consumed for a handler; ``subjects`` are its filters, wildcards included."""

    stream: str
    durable: str
    handler: str
    subjects: tuple[str, ...]


def clashes(
    own: Sequence[Consumption], others: Sequence[Consumption]
) -> Iterator[tuple[Consumption, Consumption]]:
    """Find subjects that are consumed twice, by different durables for different handlers.

    With one inbox, each message reaches only one of the two handlers. A durable that this worker consumes too
    is no clash: its handler is being changed.
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
