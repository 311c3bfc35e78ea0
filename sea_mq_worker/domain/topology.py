"""Differences of streams and consumers from their definitions, and the changes that remove them."""

from dataclasses import dataclass
from typing import Any

EXISTENCE = "existence"
"""Field name of a difference whose stream or consumer is missing altogether."""
AWAITED = "awaited"
"""Field name of a difference whose consumer is missing and waits for another context, named as wanted."""
_DURATIONS = frozenset({"ack_wait", "duplicate_window", "max_age"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of a stream or consumer that differs from its definition.

    EXISTENCE, AWAITED: all of it is missing.
    """

    name: str
    field: str
    wanted: Any
    found: Any

    @property
    def text(self) -> str:
        """The difference without the name, for people."""
        if self.field == EXISTENCE:
            return "it is missing"
        if self.field == AWAITED:
            return f"it is missing, and waits for {self.wanted}"
        wanted, found = self.wanted, self.found
        if self.field in _DURATIONS:
            wanted, found = (f"{nanoseconds / 1e9:g} s" for nanoseconds in (wanted, found))
        return f"{self.field} should be {wanted} and is {found}"

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a stream or consumer: ``created`` or ``updated``, and the differences that it removed.

    In a dry run, the change was not made.
    """

    name: str
    action: str
    differences: tuple[Difference, ...]
    by_setting: tuple[str, ...] = ()
