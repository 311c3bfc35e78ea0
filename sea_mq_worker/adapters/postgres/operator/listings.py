"""PostgresLists: events and messages, one at a time or in pages, the latest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_named
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.filters import InboxFilter, OutboxFilter
from sea_mq_worker.domain.read_models import READ_MAX, InboxRecord, OutboxDetail, OutboxSummary, Page
from sea_mq_worker.domain.uuid7 import is_uuid7, min_id_at, timestamp_of

_OF_A_KEY_MAX = 2000
"""Cap on the IDs that are read for a key; a key with more events fills a page quickly without them."""

_TEXT_MAX = 2**31 - 1
"""Characters of a text: as many as PostgreSQL can count."""

RowT = TypeVar("RowT", OutboxSummary, InboxRecord)


class RowGoneError(WorkerError):
    """The row after which a page was to begin does not exist."""

    def __init__(self, what: str) -> None:
        super().__init__(f"there is no {what} (any more): begin again without --after")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed(Generic[RowT]):
    """A listed table: the word for a row, and its columns of ID and time."""

    side: Literal["outbox", "inbox"]
    name: str
    record: type[RowT]
    id: str
    time: str


_EVENTS = _Listed(side="outbox", name="event", record=OutboxSummary, id="id", time="occurred_at")
_MESSAGES = _Listed(side="inbox", name="message", record=InboxRecord, id="message_id", time="received_at")


class PostgresLists:
    """Lists of events and messages; each method raises what ``translated`` raises.

    A page reads at most ``read_max`` rows (None: no limit), unless an index holds few rows besides those that
    match. Unfinished rows have an index on their time; finished rows have only the primary key. So a page
    that includes finished rows is ordered by ID if IDs contain their time (UUIDv7), and ``since`` and
    ``until`` then bound the time in the ID. If IDs contain no time, the whole table is read.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``."""
        self._pool = pool
        self._lists = load_named("lists")

    async def outbox_page(
        self, which: OutboxFilter, *, read_max: int | None = READ_MAX
    ) -> Page[OutboxSummary]:
        """Return a page of events.

        Raises:
            RowGoneError: the event ``which.before_id`` does not exist.
        """
        return await self._page(_EVENTS, await self._by_key_index(which), read_max)

    async def inbox_page(self, which: InboxFilter, *, read_max: int | None = READ_MAX) -> Page[InboxRecord]:
        """Return a page of messages.

        Raises:
            RowGoneError: the message ``which.before_id`` does not exist.
        """
        return await self._page(_MESSAGES, which, read_max)

    async def list_outbox(self, which: OutboxFilter) -> Sequence[OutboxSummary]:
        """Return the events of a page, without a limit of rows to read."""
        return (await self.outbox_page(which, read_max=None)).rows

    async def show_outbox(self, event_id: UUID, *, content_max: int = _TEXT_MAX) -> OutboxDetail | None:
        """Return all columns of an event; None: there is no such event.

        ``content_max``: most characters of payload, headers and metadata each; a few hundred stored bytes can
        be a text of a gigabyte.
        """
        shown = self._lists["show_outbox"].bind(id=event_id, content_max=content_max)
        rows = await fetch(self._pool, *shown)
        return OutboxDetail(**rows[0]) if rows else None

    async def list_inbox(self, which: InboxFilter) -> Sequence[InboxRecord]:
        """Return the messages of a page, without a limit of rows to read."""
        return (await self.inbox_page(which, read_max=None)).rows

    async def show_inbox(self, message_id: UUID) -> InboxRecord | None:
        """Return the record of a message; None: it was never received, or its row was pruned."""
        return next(iter(await self.list_inbox(InboxFilter(ids=(message_id,)))), None)

    async def _page(
        self, kind: _Listed[RowT], which: OutboxFilter | InboxFilter, read_max: int | None
    ) -> Page[RowT]:
        by_id = which.finished and not which.by_index and await self._ids_are_uuid7(kind)
        if which.by_index or (which.finished and not by_id):
            read_max = None
        if by_id:
            first, below = id_bounds(which.since, which.until, which.before_id)
            query = self._lists[f"list_{kind.side}_by_id"]
            bound = query.bind(which, first_id=first, below_id=below, read_max=read_max)
        else:
            bound = self._lists[f"list_{kind.side}"].bind(which, read_max=read_max)
        rows = await fetch(self._pool, *bound)
        if which.before_id and not rows and not by_id and not await self._is_there(kind, which.before_id):
            raise RowGoneError(f"{kind.name} {which.before_id}")
        time_of = None if by_id else kind.time
        return _build_page(rows, kind, time_of=time_of, limit=which.limit, read_max=read_max)

    async def _is_there(self, kind: _Listed[RowT], id_: UUID) -> bool:
        shown = self.show_outbox(id_, content_max=0) if kind.side == "outbox" else self.show_inbox(id_)
        return await shown is not None

    async def _by_key_index(self, which: OutboxFilter) -> OutboxFilter:
        """Select the unfinished events of an ordering key by the IDs in its indexes, unless they are many."""
        if which.ordering_key is None or which.ids is not None or which.finished:
            return which
        of_key = self._lists["unfinished_of_key"].bind(which, limit=_OF_A_KEY_MAX + 1)
        rows = await fetch(self._pool, *of_key)
        return which if len(rows) > _OF_A_KEY_MAX else replace(which, ids=tuple(row["id"] for row in rows))

    async def _ids_are_uuid7(self, kind: _Listed[RowT]) -> bool:
        [highest] = await fetch(self._pool, *self._lists["highest_ids"].bind())
        return highest[kind.side] is not None and is_uuid7(highest[kind.side])


def _build_page(
    found: Sequence[Mapping[str, Any]],
    kind: _Listed[RowT],
    *,
    time_of: str | None,
    limit: int,
    read_max: int | None,
) -> Page[RowT]:
    """Build a page; the last row may be the one at which reading ended.

    Column ``fits`` is true for rows of the list, and ``place`` is the number of rows read so far.
    ``time_of`` names a column; without it the time is taken from the ids.
    """
    rows = [kind.record(**_without_marks(row)) for row in found if row["fits"]]
    last = found[-1] if found else {}
    if len(rows) < limit and read_max and last.get("place") == read_max:
        reached = last[time_of] if time_of else timestamp_of(last[kind.id])
        return Page(rows=rows, next_after=last[kind.id], read=read_max, reached=reached)
    return Page(rows=rows, next_after=last[kind.id] if len(rows) == limit else None)


def id_bounds(
    since: datetime | None, until: datetime | None, before_id: UUID | None
) -> tuple[UUID | None, UUID | None]:
    """Return the inclusive lower and the exclusive upper bound of a page's ids; None: no bound."""
    lowest = min_id_at(since) if since else None
    above = [one for one in (min_id_at(until) if until else None, before_id) if one]
    return lowest, min(above, default=None)


def _without_marks(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in {"fits", "place"}}
