"""PostgresLists: events and messages, one by one or page by page, the latest first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.operator.pagination import (
    READ_MAX,
    Page,
    RowGoneError,
    build_page,
    id_bounds,
)
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.read_models import (
    InboxFilter,
    InboxRecord,
    OutboxDetail,
    OutboxFilter,
    OutboxSummary,
)
from sea_mq_worker.domain.uuid7 import is_uuid7

_OF_A_KEY_MAX = 2000
"""A page of a key that has more is soon full without its indexes."""

RowT = TypeVar("RowT", OutboxSummary, InboxRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[RowT]):
    """A table's rows, and how their list orders them by time and by id."""

    side: Literal["outbox", "inbox"]
    name: str
    record: type[RowT]
    id: str
    time: str
    by_time: str
    by_id: str


_EVENTS = _Kind(
    side="outbox",
    name="event",
    record=OutboxSummary,
    id="id",
    time="occurred_at",
    by_time="o.occurred_at DESC, o.seq DESC",
    by_id="o.id DESC",
)
_MESSAGES = _Kind(
    side="inbox",
    name="message",
    record=InboxRecord,
    id="message_id",
    time="received_at",
    by_time="i.received_at DESC, i.message_id DESC",
    by_id="i.message_id DESC",
)


class PostgresLists:
    """Lists of what is in outbox and inbox; raises what ``translated`` raises.

    A page looks at ``read_max`` rows (None: all), unless an index has little more than what is asked for.
    Unfinished rows have an index on their time, finished ones none but the primary key. So a page with
    finished ones goes by id, where ids tell when they were made: those made last come first, and ``since``
    and ``until`` mean when they were made. Where ids do not tell, the whole table is read.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``."""
        self._pool = pool
        self._lists = load_queries(
            "lists", "list_outbox", "unfinished_of_key", "show_outbox", "list_inbox", "highest_ids"
        )

    async def outbox_page(
        self, which: OutboxFilter, *, read_max: int | None = READ_MAX
    ) -> Page[OutboxSummary]:
        """Return a page of events.

        Raises:
            RowGoneError: the event that they should come after is not there.
        """
        return await self._page(_EVENTS, await self._narrowed(which), read_max)

    async def inbox_page(self, which: InboxFilter, *, read_max: int | None = READ_MAX) -> Page[InboxRecord]:
        """Return a page of messages.

        Raises:
            RowGoneError: the message that they should come after is not there.
        """
        return await self._page(_MESSAGES, which, read_max)

    async def list_outbox(self, which: OutboxFilter) -> Sequence[OutboxSummary]:
        """Return the events of a page, however much has to be read for it."""
        return (await self.outbox_page(which, read_max=None)).rows

    async def show_outbox(self, event_id: UUID) -> OutboxDetail | None:
        """Return all of an event, in whatever state it is; None: there is no such event."""
        rows = await fetch(self._pool, self._lists["show_outbox"], event_id)
        return OutboxDetail(**rows[0]) if rows else None

    async def list_inbox(self, which: InboxFilter) -> Sequence[InboxRecord]:
        """Return the messages of a page, however much has to be read for it."""
        return (await self.inbox_page(which, read_max=None)).rows

    async def show_inbox(self, message_id: UUID) -> InboxRecord | None:
        """Return what is known of a message; None: it was never received, or is pruned."""
        return next(iter(await self.list_inbox(InboxFilter(ids=(message_id,)))), None)

    async def _page(
        self, kind: _Kind[RowT], which: OutboxFilter | InboxFilter, read_max: int | None
    ) -> Page[RowT]:
        by_id = which.finished and not which.by_index and await self._tells_time(kind)
        if which.by_index or (which.finished and not by_id):
            read_max = None
        statement = self._lists[f"list_{kind.side}"]
        chosen = (*which.arguments, which.before_id, None, None)
        if by_id:
            statement = statement.replace(kind.by_time, kind.by_id)
            chosen = (
                *replace(which, since=None, until=None).arguments,
                None,
                *id_bounds(which.since, which.until, which.before_id),
            )
        rows = await fetch(self._pool, statement, *chosen, read_max, which.limit)
        if which.before_id and not rows and not by_id and not await self._is_there(kind, which.before_id):
            raise RowGoneError(f"{kind.name} {which.before_id}")
        return build_page(
            rows,
            kind.record,
            id_of=kind.id,
            time_of=None if by_id else kind.time,
            limit=which.limit,
            read_max=read_max,
        )

    async def _is_there(self, kind: _Kind[RowT], id_: UUID) -> bool:
        shown = self.show_outbox(id_) if kind.side == "outbox" else self.show_inbox(id_)
        return await shown is not None

    async def _narrowed(self, which: OutboxFilter) -> OutboxFilter:
        """Choose the unfinished events of an ordering key by id, as its indexes tell them, if not many."""
        if which.ordering_key is None or which.ids is not None or which.finished:
            return which
        of_key = self._lists["unfinished_of_key"]
        rows = await fetch(self._pool, of_key, which.ordering_key, _OF_A_KEY_MAX + 1)
        return which if len(rows) > _OF_A_KEY_MAX else replace(which, ids=tuple(row["id"] for row in rows))

    async def _tells_time(self, kind: _Kind[RowT]) -> bool:
        [highest] = await fetch(self._pool, self._lists["highest_ids"])
        return highest[kind.side] is not None and is_uuid7(highest[kind.side])
