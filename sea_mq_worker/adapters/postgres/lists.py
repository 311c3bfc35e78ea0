"""PostgresLists: events and messages, one by one or page by page, the latest first."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Literal
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.pages import READ_MAX, Page, RowGoneError, page_of, page_read, reach
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.adapters.postgres.records import (
    InboxFilter,
    InboxRecord,
    InboxState,
    OutboxDetail,
    OutboxFilter,
    OutboxSummary,
    as_texts,
)
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.ids import tells_time

_OF_A_KEY_MAX = 2000
"""A page of a key that has more is soon full without its indexes."""

_event_id = attrgetter("id")
_message_id = attrgetter("message_id")


class PostgresLists:
    """Lists of what is in outbox and inbox; raises what ``translated`` raises.

    Unfinished rows have an index, finished ones none but the primary key. So a page with finished ones goes
    by id, where ids tell when they were made: those made last come first, ``since`` and ``until`` mean when
    they were made, and no more than ``read_max`` rows are looked at (None: all). Elsewhere all are read.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``."""
        self._pool = pool
        self._lists = load_queries(
            "lists",
            *("list_outbox", "unfinished_of_key", "latest_outbox", "show_outbox"),
            *("list_inbox", "latest_inbox", "highest_ids"),
        )

    async def outbox_page(
        self, which: OutboxFilter, *, read_max: int | None = READ_MAX
    ) -> Page[OutboxSummary]:
        """Return a page of events.

        Raises:
            RowGoneError: the event that they should come after is not there.
        """
        if which.beyond_indexes and await self._tells_time("outbox"):
            return await self._latest_outbox(which, read_max)
        found = await self.list_outbox(await self._narrowed(which))
        if which.before_id and not found and await self.show_outbox(which.before_id) is None:
            raise RowGoneError(f"event {which.before_id}")
        return page_of(found, _event_id, limit=which.limit)

    async def inbox_page(self, which: InboxFilter, *, read_max: int | None = READ_MAX) -> Page[InboxRecord]:
        """Return a page of messages.

        Raises:
            RowGoneError: the message that they should come after is not there.
        """
        if which.beyond_indexes and await self._tells_time("inbox"):
            return await self._latest_inbox(which, read_max)
        found = await self.list_inbox(which)
        if which.before_id and not found and await self.show_inbox(which.before_id) is None:
            raise RowGoneError(f"message {which.before_id}")
        return page_of(found, _message_id, limit=which.limit)

    async def list_outbox(self, which: OutboxFilter) -> Sequence[OutboxSummary]:
        """Return events, those that occurred last first, however much has to be read for it."""
        rows = await fetch(
            self._pool,
            self._lists["list_outbox"],
            list(which.states),
            EventState.PUBLISHED not in which.states,
            *which.conditions,
            which.before_id,
            which.limit,
        )
        return [OutboxSummary(**row) for row in rows]

    async def show_outbox(self, event_id: UUID) -> OutboxDetail | None:
        """Return all of an event, in whatever state it is; None: there is no such event."""
        rows = await fetch(self._pool, self._lists["show_outbox"], event_id)
        return OutboxDetail(**rows[0]) if rows else None

    async def list_inbox(self, which: InboxFilter) -> Sequence[InboxRecord]:
        """Return messages, those that were received last first, however much has to be read for it."""
        rows = await fetch(
            self._pool,
            self._lists["list_inbox"],
            list(which.states),
            InboxState.PROCESSED not in which.states,
            as_texts(which.ids),
            which.consumer,
            which.subject,
            which.reason,
            which.since,
            which.until,
            which.error_like,
            which.before_id,
            which.limit,
        )
        return [InboxRecord(**row) for row in rows]

    async def show_inbox(self, message_id: UUID) -> InboxRecord | None:
        """Return what is known of a message; None: it was never received, or is pruned."""
        return next(iter(await self.list_inbox(InboxFilter(ids=(message_id,)))), None)

    async def _narrowed(self, which: OutboxFilter) -> OutboxFilter:
        """Choose the unfinished events of an ordering key by id, as its indexes tell them, if not many."""
        if which.ordering_key is None or which.ids is not None or EventState.PUBLISHED in which.states:
            return which
        of_key = self._lists["unfinished_of_key"]
        rows = await fetch(self._pool, of_key, which.ordering_key, _OF_A_KEY_MAX + 1)
        return which if len(rows) > _OF_A_KEY_MAX else replace(which, ids=tuple(row["id"] for row in rows))

    async def _tells_time(self, side: Literal["outbox", "inbox"]) -> bool:
        [highest] = await fetch(self._pool, self._lists["highest_ids"])
        return highest[side] is not None and tells_time(highest[side])

    async def _latest_outbox(self, which: OutboxFilter, read_max: int | None) -> Page[OutboxSummary]:
        rows = await fetch(
            self._pool,
            self._lists["latest_outbox"],
            *reach(which.since, which.until, which.before_id),
            read_max,
            list(which.states),
            which.event_type,
            which.ordering_key,
            which.aggregate_type,
            which.aggregate_id,
            which.error_like,
            which.limit,
        )
        return page_read(rows, OutboxSummary, _event_id, limit=which.limit, read_max=read_max)

    async def _latest_inbox(self, which: InboxFilter, read_max: int | None) -> Page[InboxRecord]:
        rows = await fetch(
            self._pool,
            self._lists["latest_inbox"],
            *reach(which.since, which.until, which.before_id),
            read_max,
            list(which.states),
            which.consumer,
            which.subject,
            which.reason,
            which.error_like,
            which.limit,
        )
        return page_read(rows, InboxRecord, _message_id, limit=which.limit, read_max=read_max)
