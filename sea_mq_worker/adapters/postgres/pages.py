"""Pages of lists: from which id to which one is read, and what is told of the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.ids import lowest_id

READ_MAX = 20_000
"""So many rows are looked at in some hundredths of a second."""

RowT = TypeVar("RowT")


class RowGoneError(WorkerError):
    """There is no row that a page could come after."""

    def __init__(self, what: str) -> None:
        super().__init__(f"there is no {what} (any more): begin again without --after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[RowT]):
    """A part of a list.

    Attributes:
        rows: what fits, the latest first.
        goes_on: the id behind which the next page begins; None: the list ends here.
        read: so many rows were looked at without finding a page full; None: the page is full, or all were.
    """

    rows: Sequence[RowT]
    goes_on: UUID | None
    read: int | None = None


def page_of(rows: Sequence[RowT], id_of: Callable[[RowT], UUID], *, limit: int) -> Page[RowT]:
    """Make a page of up to ``limit`` rows that fit, where all were looked at that had to be."""
    return Page(rows=rows, goes_on=id_of(rows[-1]) if len(rows) == limit else None)


def page_read(
    found: Sequence[Mapping[str, Any]],
    record: Callable[..., RowT],
    id_of: Callable[[RowT], UUID],
    *,
    limit: int,
    read_max: int | None,
) -> Page[RowT]:
    """Make a page of rows of which the last may be the one at which the reading ended.

    ``fits`` tells of each whether it belongs to the list, and ``place`` how many were looked at.
    """
    rows = [record(**_without_marks(row)) for row in found if row["fits"]]
    if len(rows) < limit and found and found[-1]["place"] == read_max:
        return Page(rows=rows, goes_on=id_of(record(**_without_marks(found[-1]))), read=read_max)
    return page_of(rows, id_of, limit=limit)


def reach(
    since: datetime | None, until: datetime | None, before_id: UUID | None
) -> tuple[UUID | None, UUID | None]:
    """Return the lowest id of a page, and what its ids are below; None: no bound."""
    lowest = lowest_id(since) if since else None
    above = [one for one in (lowest_id(until) if until else None, before_id) if one]
    return lowest, min(above, default=None)


def _without_marks(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in {"fits", "place"}}
