"""A page of a list, and how many rows one page may read."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

READ_MAX = 20_000
"""Rows that a page reads at most by default: PostgreSQL reads them in some hundredths of a second."""

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[RowT]):
    """A part of a list.

    Attributes:
        rows: what fits, the latest first.
        goes_on: the id behind which the next page begins; None: the list ends here.
        read: so many rows were looked at without finding a page full; None: the page is full, or all were.
        reached: the time back to which they go, where ``read`` is told.
    """

    rows: Sequence[RowT]
    goes_on: UUID | None
    read: int | None = None
    reached: datetime | None = None
