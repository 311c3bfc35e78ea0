"""Differences of streams and consumers from their definitions, and the changes that remove them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of a stream or consumer that differs from its definition; EXISTENCE: all of it is missing."""

    name: str
    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.field} should be {self.wanted} and is {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a stream or consumer: ``created`` or ``updated``, and the differences that it removed.

    In a dry run, the change was not made.
    """

    name: str
    action: str
    differences: tuple[Difference, ...]
    by_setting: tuple[str, ...] = ()
