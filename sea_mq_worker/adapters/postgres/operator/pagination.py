"""Pages of lists: bounds of their ids, and the position where the next page begins."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.read_models import Page, RowT
from sea_mq_worker.domain.uuid7 import min_id_at, timestamp_of


class RowGoneError(WorkerError):
    """The row after which a page was to begin does not exist."""

    def __init__(self, what: str) -> None:
        super().__init__(f"there is no {what} (any more): begin again without --after")


def build_page(
    found: Sequence[Mapping[str, Any]],
    record: Callable[..., RowT],
    *,
    id_of: str,
    time_of: str | None,
    limit: int,
    read_max: int | None,
) -> Page[RowT]:
    """Build a page; the last row may be the one at which reading ended.

    Column ``fits`` is true for rows of the list, and ``place`` is the number of rows read so far. ``id_of``
    and ``time_of`` name columns; without ``time_of`` the time is taken from the ids.
    """
    rows = [record(**_without_marks(row)) for row in found if row["fits"]]
    last = found[-1] if found else {}
    if len(rows) < limit and read_max and last.get("place") == read_max:
        reached = last[time_of] if time_of else timestamp_of(last[id_of])
        return Page(rows=rows, next_after=last[id_of], read=read_max, reached=reached)
    return Page(rows=rows, next_after=last[id_of] if len(rows) == limit else None)


def id_bounds(
    since: datetime | None, until: datetime | None, before_id: UUID | None
) -> tuple[UUID | None, UUID | None]:
    """Return the inclusive lower and the exclusive upper bound of a page's ids; None: no bound."""
    lowest = min_id_at(since) if since else None
    above = [one for one in (min_id_at(until) if until else None, before_id) if one]
    return lowest, min(above, default=None)


def _without_marks(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in {"fits", "place"}}
