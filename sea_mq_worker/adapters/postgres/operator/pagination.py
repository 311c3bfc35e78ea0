"""Pages of lists: from which id to which one is read, and what is told of the end."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.read_models import Page, RowT
from sea_mq_worker.domain.uuid7 import min_id_at, timestamp_of


class RowGoneError(WorkerError):
    """There is no row that a page could come after."""

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
    """Make a page of rows of which the last may be the one at which the reading ended.

    ``fits`` tells of each whether it belongs to the list, and ``place`` how many were looked at. ``id_of``
    and ``time_of`` name columns; without the latter ids tell the time.
    """
    rows = [record(**_without_marks(row)) for row in found if row["fits"]]
    last = found[-1] if found else {}
    if len(rows) < limit and read_max and last.get("place") == read_max:
        reached = last[time_of] if time_of else timestamp_of(last[id_of])
        return Page(rows=rows, goes_on=last[id_of], read=read_max, reached=reached)
    return Page(rows=rows, goes_on=last[id_of] if len(rows) == limit else None)


def id_bounds(
    since: datetime | None, until: datetime | None, before_id: UUID | None
) -> tuple[UUID | None, UUID | None]:
    """Return the lowest id of a page, and what its ids are below; None: no bound."""
    lowest = min_id_at(since) if since else None
    above = [one for one in (min_id_at(until) if until else None, before_id) if one]
    return lowest, min(above, default=None)


def _without_marks(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in {"fits", "place"}}
