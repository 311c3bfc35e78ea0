"""PostgresOperations: operators' changes of outbox and inbox."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import asyncpg

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.inbox.dead_letter import Reason, conflict_detail
from sea_mq_worker.operators.ports import Chosen, Replay
from sea_mq_worker.operators.prune import PostgresPruning, ignore_progress
from sea_mq_worker.operators.records import (
    MARKED,
    NUMBERS,
    READ_MAX,
    ActionOutcome,
    AuditFilter,
    ConsumerState,
    DeadEvent,
    DeadReason,
    Depth,
    Discarded,
    EarlierEvent,
    Group,
    InboxFilter,
    InboxRecord,
    Match,
    OnPartition,
    OnProgress,
    OperatorAction,
    OutboxDetail,
    OutboxFilter,
    OutboxSummary,
    Overview,
    Page,
    PruneResult,
    Redrive,
    check_accountable,
)
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.partitions import is_uuid7, min_id_at, timestamp_of
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout
from sea_mq_worker.postgres.queries import load_named, load_queries

# --- PostgresLists: events and messages, one at a time or in pages, the latest first.

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


# --- PostgresOverview: queries of the worker's page, each at a small, bounded cost.

BY_INDEX: Mapping[str, str] = MappingProxyType(
    {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}
)
"""Settings for sessions that sample: the planner considers "open" and "unpublished" independent, and would
read millions of published events to find the few others. Without a sort, an order names the index to use."""

_ROWS_MAX = 10_000
"""Cap on the dead events and dead letters that are read."""
_REASONS_MAX = 5


class PostgresOverview:
    """Reads only; raises what ``translated`` raises."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``BY_INDEX``."""
        self._pool = pool
        self._sql = load_queries("page")

    async def overview(self, *, sessions: str) -> Overview:
        """Count reasons, and workers by the application name of a session that each keeps open."""
        rows = await fetch(self._pool, self._sql["overview"], _ROWS_MAX, _REASONS_MAX, sessions)
        reasons: dict[str, list[DeadReason]] = {"outbox": [], "inbox": []}
        workers = 0
        for row in rows:
            if row["kind"] == "workers":
                workers = row["count"]
            else:
                text = row["name"] or "no error is noted"
                reasons[row["kind"]].append(DeadReason(text=text, count=row["count"]))
        return Overview(reasons=reasons, workers=workers)

    async def dead_events(
        self, *, event_type: str | None, error: str | None, below: int | None, limit: int
    ) -> Sequence[DeadEvent]:
        args = (event_type, error, below, _ROWS_MAX, limit)
        return [DeadEvent(**row) for row in await fetch(self._pool, self._sql["dead_events"], *args)]


# --- PostgresInspection: read-only queries of operators.

_ALL = AuditFilter()


class PostgresInspection(PostgresLists):
    """Inspection (Open Outbox, operator), which changes nothing; see ``ports.operations.LookupTables``, too.

    Each method raises what ``translated`` raises.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``, since these statements read much and run rarely."""
        super().__init__(pool=pool)
        self._depth = load_queries("depth")
        self._asked = load_queries("inspection")
        self._audit = load_named("audit")["audit"]

    async def outbox_depth(self) -> Depth:
        """Return the exact depth of the outbox (QRY-050)."""
        return _depth_of(await fetch(self._pool, self._depth["outbox_depth"]))

    async def inbox_depth(self) -> Depth:
        """Return the exact depth of the inbox (QRY-051)."""
        return _depth_of(await fetch(self._pool, self._depth["inbox_depth"]))

    async def outbox_depth_capped(self, *, limit: int) -> Depth:
        """Return the depth of the outbox with numbers capped at ``limit``, at a constant cost."""
        return _depth_of(await fetch(self._pool, self._asked["outbox_depth_capped"], limit))

    async def inbox_depth_capped(self, *, limit: int) -> Depth:
        """Return the depth of the inbox with numbers capped at ``limit``, at a constant cost."""
        return _depth_of(await fetch(self._pool, self._asked["inbox_depth_capped"], limit))

    async def without_read_ahead(self, consumer: ConsumerState, *, limit: int) -> ConsumerState:
        """Leave out messages that the inbox has before their delivery; count them up to a limit."""
        if not consumer.pending:
            return consumer
        named = (consumer.stream, consumer.durable, consumer.delivered_seq, limit)
        [row] = await fetch(self._pool, self._asked["read_ahead"], *named, consumer.oldest_id or None)
        return consumer.without(row["count"], oldest=row["has_oldest"])

    async def outbox_summary(self, *, read_max: int, groups_max: int) -> Sequence[Group]:
        """Group the oldest ``read_max`` unfinished events, the largest groups of each kind first."""
        rows = await fetch(self._pool, self._asked["outbox_summary"], read_max, groups_max, NUMBERS, MARKED)
        return [Group(**row) for row in rows]

    async def inbox_summary(self, *, read_max: int, groups_max: int) -> Sequence[Group]:
        """Group the oldest ``read_max`` unprocessed messages in the same way."""
        rows = await fetch(self._pool, self._asked["inbox_summary"], read_max, groups_max, NUMBERS, MARKED)
        return [Group(**row) for row in rows]

    async def audit(self, which: AuditFilter = _ALL, *, limit: int) -> Sequence[OperatorAction]:
        """Return operators' actions, the latest first."""
        rows = await fetch(self._pool, *self._audit.bind(which, limit=limit))
        return [OperatorAction(**row) for row in rows]

    async def discarded(self, event_id: UUID) -> Discarded | None:
        rows = await fetch(self._pool, self._asked["discarded"], str(event_id))
        return Discarded(**rows[0]) if rows else None

    async def session_is_held(self, session: str) -> bool:
        [row] = await fetch(self._pool, self._asked["session_is_held"], session)
        return bool(row["exists"])

    async def ids_between(self, first: UUID, last: UUID, *, limit: int) -> Sequence[Match]:
        rows = await fetch(self._pool, self._asked["ids_between"], first, last, limit)
        return [Match(**row) for row in rows]

    async def earlier_of_key(
        self, event: OutboxSummary, *, limit: int, dead_hold: bool
    ) -> Sequence[EarlierEvent]:
        if event.ordering_key is None:
            return []
        rows = await fetch(
            self._pool, self._asked["earlier_of_key"], event.ordering_key, event.seq, limit, dead_hold
        )
        return [EarlierEvent(**row) for row in rows]

    async def conflicts(self, message_id: UUID, *, limit: int) -> Sequence[UUID]:
        reason = Reason.CONTENT_CONFLICT
        noted = f"{reason}: {conflict_detail(str(message_id))}"
        rows = await fetch(self._pool, self._asked["conflicts"], str(reason), noted, limit)
        return [row["message_id"] for row in rows]


def _depth_of(rows: Sequence[Any]) -> Depth:
    values = dict(rows[0])
    return Depth(**values | {"waiting_seconds": max(0.0, values["waiting_seconds"] or 0.0)})


# --- PostgresReplays: put events back into the outbox, in portions that do not delay new events.

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_TIMES = ("since", "until")
_PAGING = ("limit", "before_id")
_LOWEST = -(2**63)
"""Below every seq: who writes rows past the triggers may choose a negative one."""


class PostgresReplays:
    """Changes events from PUBLISHED or DEAD to PENDING, the earliest first, which keeps each key's order.

    See ``ports.operations.ReplayTables``. Each method raises what ``translated`` raises, too.
    """

    def __init__(self, *, pool: asyncpg.Pool, hold_dead_keys: bool = False) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``; a DEAD event may hold back the later ones of its key."""
        self._pool = pool
        self._hold_dead_keys = hold_dead_keys
        self._sql = load_named("replay")

    async def choose(
        self, which: OutboxFilter, *, limit: int | None, resumed: Replay | None = None
    ) -> list[Chosen]:
        states = tuple(state for state in _TERMINAL if state in which.states)
        choose = self._sql["choose"].bind(
            replace(which, states=states),
            through=(resumed.through if resumed else 0) or _LOWEST,
            begun_at=resumed.at if resumed else None,
            limit=limit,
        )
        rows = await fetch_with_long_timeout(self._pool, *choose)
        return [Chosen(row["id"], row["seq"], row["published_at"]) for row in rows]

    async def begin(self, which: OutboxFilter, *, actor: str, reason: str) -> Replay:
        check_accountable(actor, reason)
        states = tuple(state for state in _TERMINAL if state in which.states)
        selection = as_json(replace(which, states=states))
        begin = self._sql["begin_replay"].bind(actor=actor, reason=reason, selection=selection)
        rows = await fetch(self._pool, *begin)
        return Replay(id=rows[0]["id"], which=which)

    async def load(self, action: int) -> Replay:
        rows = await fetch(self._pool, *self._sql["load_replay"].bind(action=action))
        if not rows:
            raise WorkerError(
                f"action {action} is no replay; `python -m sea_mq_worker audit --action replay` lists them"
            )
        selection = json.loads(rows[0]["selection"])
        progress = selection.pop("progress", {"finished": True})
        if progress["finished"]:
            raise WorkerError(f"replay {action} is finished: it put back {rows[0]['affected']}")
        if "as_given" in progress:
            raise WorkerError(f"replay {action} is the pipeline's: run the same `pipeline replay` again")
        return Replay(
            id=action,
            which=_from_json(selection),
            at=rows[0]["at"],
            through=progress["through"],
            replayed=rows[0]["affected"],
        )

    async def put_back(self, replay: Replay, portion: Sequence[Chosen]) -> Replay:
        through = max(portion[-1].seq, replay.through)
        ids = [one.id for one in portion]
        put_back = self._sql["put_back"].bind(
            ids=ids, action=replay.id, through=replay.through, last_seq=through
        )
        [row] = await fetch(self._pool, *put_back)
        if not row["is_mine"]:
            raise WorkerError(f"another run continues replay {replay.id}; let it, or stop it first")
        return replace(replay, through=through, replayed=replay.replayed + row["count"])

    async def not_taken(self, ids: Sequence[UUID]) -> list[UUID]:
        not_taken = self._sql["not_taken"].bind(ids=ids, hold_dead_keys=self._hold_dead_keys)
        return [row["id"] for row in await fetch(self._pool, *not_taken)]

    async def finish(self, replay: Replay) -> None:
        await fetch(self._pool, *self._sql["finish_replay"].bind(action=replay.id))


def as_json(which: OutboxFilter) -> str:
    given = {name: value for name, value in asdict(which).items() if value is not None}
    return json.dumps({name: value for name, value in given.items() if name not in _PAGING}, default=str)


def _from_json(selection: Mapping[str, Any]) -> OutboxFilter:
    given = dict(selection)
    for name in _TIMES:
        if name in given:
            given[name] = datetime.fromisoformat(given[name])
    if "ids" in given:
        given["ids"] = tuple(map(UUID, given["ids"]))
    if "correlation_id" in given:
        given["correlation_id"] = UUID(given["correlation_id"])
    return OutboxFilter(**given | {"states": tuple(map(EventState, given["states"]))})


class PostgresOperations(PostgresInspection):
    """Inspection and intervention (Open Outbox, operator).

    Every change names who makes it and why, and leaves a record in ``operator_actions`` of what was selected
    and how much was changed, also when it was cut short; see ``ports.operations.DeadLetterRecords``.
    Each method raises what ``translated`` raises.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``, since these statements read much and run rarely."""
        super().__init__(pool=pool)
        self._sql = load_queries("operations")
        self.pruning = PostgresPruning(pool=pool)

    async def mark_dead(self, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
        """Change events from PENDING to DEAD, by way of CLAIMED (Open Outbox, operator intervention).

        Returns the events that it ended; one that a relay holds right now is not among them.
        """
        selection = json.dumps({"ids": [str(event_id) for event_id in ids]})
        error = f"ended by {actor}: {reason}"
        with translated():
            async with self._pool.acquire() as connection, connection.transaction():
                args = _action_args("mark_dead", actor, reason, selection)
                action = await connection.fetchval(self._sql["begin_action"], *args)
                rows = await connection.fetch(self._sql["make_due"], ids)
                waiting = [row["id"] for row in rows]
                await connection.execute(self._sql["claim_as_operator"], waiting, actor)
                await connection.execute(self._sql["mark_dead"], waiting, error, action)
        return frozenset(waiting)

    async def discard(
        self, ids: Sequence[UUID], *, selection: OutboxFilter, actor: str, reason: str
    ) -> frozenset[UUID]:
        """Delete DEAD events for good; the audit keeps all about them except their contents.

        Returns the events that it deleted; one that was replayed meanwhile is not among them.
        """
        check_accountable(actor, reason)
        args = ids, actor, reason, as_json(selection)
        return frozenset(row["id"] for row in await fetch(self._pool, self._sql["discard"], *args))

    async def redriven(self, message_id: UUID, *, actor: str, reason: str) -> Redrive:
        """Open a dead-lettered message before it is sent again, or the worker would skip it."""
        check_accountable(actor, reason)
        rows = await fetch(self._pool, self._sql["redriven"], message_id, actor, reason)
        return Redrive(open=rows[0]["open"], reopened=rows[0]["reopened"], action=rows[0]["action"])

    async def finish(self, action: int, outcome: ActionOutcome) -> None:
        await fetch(self._pool, self._sql["finish_action"], action, outcome)

    async def close(self, ids: Sequence[UUID], *, actor: str, reason: str) -> frozenset[UUID]:
        """Close messages without an effect that no worker leases; return the closed ones."""
        selection = json.dumps({"ids": [str(message_id) for message_id in ids]})
        action = await self._begin("close", actor, reason, selection)
        note = f"closed by {actor}: {reason}"
        rows = await fetch(self._pool, self._sql["close_messages"], ids, note, action)
        return frozenset(row["message_id"] for row in rows)

    async def resume(self, event_type: str, *, actor: str, reason: str) -> int:
        """Record that workers shall end the slow pace of an event type; empty: of all types."""
        selection = json.dumps({"event_type": event_type})
        async with self.recorded("resume", actor, reason, selection) as action:
            return action

    async def begin_purge(self, selection: Mapping[str, Any], *, actor: str, reason: str) -> int:
        return await self._begin("purge", actor, reason, json.dumps(selection, default=str))

    async def record_purge(self, message_id: UUID | None, *, action: int, actor: str, reason: str) -> bool:
        note = f"purged by {actor}: {reason}"
        rows = await fetch(self._pool, self._sql["record_purge"], message_id, note, action)
        return bool(rows[0]["may_go"])

    async def prune(
        self,
        side: str,
        before: datetime,
        *,
        actor: str,
        reason: str,
        cap: int | None = None,
        on_progress: OnProgress = ignore_progress,
        on_partition: OnPartition = ignore_progress,
    ) -> PruneResult:
        """Delete events published, or messages processed or closed, before a time; others stay, however old.

        A message that is delivered again after its row is gone has its effect again: keep rows of the inbox
        longer than the streams keep messages.

        Args:
            side: ``outbox`` or ``inbox``.
            before: the time.
            actor: who does it.
            reason: why.
            cap: stop after this many rows plus at most a range of pages; no larger partition is dropped.
            on_progress: called after each range and each partition.
            on_partition: called for each partition whose time is over, dropped or kept.
        """
        selection = json.dumps({"before": before.isoformat()})
        async with self.recorded(f"prune_{side}", actor, reason, selection) as action:
            return await self.pruning.prune(
                side, before, action=action, cap=cap, on_progress=on_progress, on_partition=on_partition
            )

    @asynccontextmanager
    async def recorded(self, action: str, actor: str, reason: str, selection: str) -> AsyncIterator[int]:
        """Keep a record open for a block, and yield its number; close it as done or failed unless killed."""
        number = await self._begin(action, actor, reason, selection)
        try:
            yield number
        except WorkerError:
            with suppress(WorkerError):
                await self.finish(number, "failed")
            raise
        await self.finish(number, "done")

    async def _begin(self, action: str, actor: str, reason: str, selection: str) -> int:
        args = _action_args(action, actor, reason, selection)
        rows = await fetch(self._pool, self._sql["begin_action"], *args)
        return int(rows[0]["id"])


def _action_args(action: str, actor: str, reason: str, selection: str) -> tuple[str, str, str, str]:
    check_accountable(actor, reason)
    return actor, action, reason, selection
