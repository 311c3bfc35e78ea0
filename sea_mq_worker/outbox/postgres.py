"""PostgresOutboxAdapter: one lane of the outbox, in two round trips a batch."""

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, TypeAlias, assert_never

import asyncpg

from sea_mq_worker.errors import RowsRefusedError
from sea_mq_worker.nats.message import Stored
from sea_mq_worker.outbox.event import (
    BATCH_DEFAULT,
    NO_BYTES_MAX,
    WHOLE,
    Claim,
    Died,
    OutboxEvent,
    Postponed,
    Published,
    Reaped,
    Released,
    Share,
    Verdict,
)
from sea_mq_worker.outbox.floors import KeyFloors
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import fetch, to_storable_text
from sea_mq_worker.postgres.queries import load_named

# --- ClaimCursor: where a claim continues to read its index.

_GRACE = timedelta(seconds=5)
_CHEAP_SECONDS = 0.005
"""A sweep that costs less, and finds nothing, may be repeated by each claim."""
_SWEEP_SECONDS = 1.0
_SWEEP_SHARE = 20.0
_SWEEP_MAX_SECONDS = 30.0

Position: TypeAlias = tuple[datetime, int]

START: Position = (datetime.min.replace(tzinfo=UTC), -(2**63))
END: Position = (datetime.max.replace(tzinfo=UTC), 2**63 - 1)
"""Before and behind every row: a connection sends these times as infinite ones."""


class ClaimCursor:
    """A position in an index over (available_at, seq), from which the next claim reads on.

    Entries of published events stay in the index while any transaction is older than they are, and events
    behind a failing head of their key cannot be claimed. A claim that read from the front would read all of
    them each time. An event that becomes claimable behind the cursor is found by a sweep from the front: once
    a second, or less often if the sweep is slow (a twentieth of the time), but at least twice a minute.

    With a batch of 2, and positions written as their seq::

        index     next()  claim reads  advance(...)                     next position
        1 2 3 4   START   1 2          truncated, found: a sweep ends   2
        1 2 3 4   2       3 4          truncated, found                 4
        3 4 5     4       5            not truncated                    5 s before now, or 5 if earlier
        1 5       (1 s later)
        1 5       START   1 5          a sweep: 1 was due again         5

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._position = START
        self._sweeping = False
        self._swept_at = 0.0
        self._sweep_seconds = 0.0
        self._sweep_at = float("-inf")

    def next(self) -> Position:
        """Return the position behind which the next claim reads."""
        if not self._sweeping and self._clock() >= self._sweep_at:
            self._sweeping = True
            self._swept_at = self._clock()
            self._sweep_seconds = 0.0
            self._position = START
        return self._position

    def advance(
        self, position: Position, *, now: datetime, truncated: bool, found_any: bool, seconds: float
    ) -> None:
        """Move behind what a claim has read at ``now``, by the database's clock, and in ``seconds``.

        ``position``: the last row that need not be read again. ``truncated``: there may be more rows behind
        it. ``found_any``: the claim took an event.
        """
        self._position = max(self._position, position)
        if self._sweeping:
            self._sweep_seconds += seconds
        if not truncated:
            # A row can be seen from its commit on, but is sorted by the start of its transaction.
            seen = now - _GRACE, 0
            is_dear = self._sweeping and self._sweep_seconds > _CHEAP_SECONDS
            self._position = seen if is_dear else min(self._position, seen)
        if self._sweeping:
            pause = max(_SWEEP_SECONDS, _SWEEP_SHARE * self._sweep_seconds)
            self._sweep_at = self._swept_at + min(pause, _SWEEP_MAX_SECONDS)
            self._sweeping = truncated and not found_any

    def rewind(self) -> None:
        """Let the next claim read from the front."""
        self._sweeping = False
        self._sweep_at = float("-inf")


_PASSED_OVER_SECONDS = 15.0
"""Time after which a claim of a refused event is tried again: the trigger may have been fixed."""
_FOUND_MAX = 16
"""Cap on refused events that are found at once; the next claim finds the rest."""
_REAP_MAX = 500
_TAKE_OVER_ROWS = 20_000
"""Rows of each index that a takeover reads; more than all claims of some workers."""
_OWNERS_MAX = 100
"""Claims that ``mark_published`` and ``increment_attempts`` remember."""
_BEHIND_MAX = 100_000
"""Keys with later events that are remembered; a sweep finds the events of others."""
_YEAR_SECONDS = 31_536_000.0
_EVENT = slice(-len(OutboxEvent._fields), None)
"""Position of the event in a row of a claim."""


@dataclass(kw_only=True, eq=False, repr=False)
class PostgresOutboxAdapter:
    """Leases, settles and reaps the events of one lane; see ``ports.OutboxRepository``.

    One adapter claims the events that have an ordering key (``ordered``), another those that have none;
    either one reaps both. Safe to use from several tasks.

    Attributes:
        pool: opened with ``WORKER_HINTS``.
        worker: name in ``claimed_by``, for people; it need not be unique, because a token fences claims.
        hold_dead_keys: a DEAD event holds the later events of its key.
        failures_max: number of failures, expired leases included, after which an event is DEAD.
        delay_max_seconds: returns the longest delay of a retry; a retry due later was written while the clock
            was ahead.
        run_max: maximum number of events of one key in a claim of many keys.
        look_max: maximum number of index rows that one search for expired leases reads.
        session: key of the worker's session, whose end ends its claims; empty: claims end only by expiry.
        clock: monotonic seconds.
    """

    pool: asyncpg.Pool
    worker: str
    lease_seconds: float
    ordered: bool
    hold_dead_keys: bool
    failures_max: int
    delay_max_seconds: Callable[[], float] = lambda: _YEAR_SECONDS
    run_max: int = 100
    look_max: int = 5000
    session: str = ""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._owner_prefix = f"{self.worker}#{self.session}"
        self._sql = load_named("outbox")
        self._owners: deque[str] = deque(maxlen=_OWNERS_MAX)
        self._fresh = ClaimCursor(self.clock)
        self._retries = ClaimCursor(self.clock)
        self._retries_first = False
        self._rolled: dict[str, Sequence[Position | None]] = {}
        self._share = WHOLE
        self._floors = KeyFloors()
        self._hints: set[str] = set()
        self._behind: set[str] = set()
        self._passed_over: dict[str, float] = {}

    @property
    def has_freed(self) -> bool:
        return bool(self._hints)

    async def find_unpublished(
        self,
        *,
        batch_max: int = BATCH_DEFAULT,
        bytes_max: int = NO_BYTES_MAX,
        event_bytes_max: int = NO_BYTES_MAX,
        following: Sequence[Claim] = (),
        share: Share = WHOLE,
    ) -> Claim:
        """Lease due events; neither retries nor first tries can take all places of a full batch."""
        self._retries_first = not self._retries_first
        now = self.clock()
        self._passed_over = {id_: until for id_, until in self._passed_over.items() if until > now}
        owners = [_owner_and_time(claim)[0] for claim in following]
        if share != self._share:  # its events may be behind the cursors, which were another share's
            self._share = share
            self._fresh.rewind()
            self._retries.rewind()
        limits = batch_max, bytes_max, event_bytes_max, owners
        try:
            return await self._claim(*limits)
        except RowsRefusedError:
            head, _ = await self._take("", *limits, names_only=True)
            refused = await self._refused(head["names"])
            if not refused:
                raise
            until = self.clock() + _PASSED_OVER_SECONDS
            self._passed_over |= {id_: until for id_, _ in refused}
            return replace(await self._claim(*limits), refused=tuple(refused))

    async def _refused(self, ids: Sequence[str]) -> list[tuple[str, RowsRefusedError]]:
        """Find the events whose claim PostgreSQL refuses, by a trigger for example; claims pass them over.

        Claim the events by halves, and roll each claim back, when deferred triggers have had their say.
        """
        left, found = [ids], list[tuple[str, RowsRefusedError]]()
        while left and len(found) < _FOUND_MAX:
            part = left.pop(0)
            try:
                with translated():
                    async with self.pool.acquire() as connection:
                        trial = connection.transaction()
                        await trial.start()
                        try:
                            await connection.fetch(self._sql["try_claim"].sql, part, "trial")
                            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                        finally:
                            await trial.rollback()
            except RowsRefusedError as error:
                if len(part) > 1:
                    left += [part[: len(part) // 2], part[len(part) // 2 :]]
                else:
                    found.append((part[0], error))
        return found

    async def mark_published(self, id: str, *, stored: Stored | None = None) -> bool:  # noqa: A002 - SDS-047's
        """Settle a claim of this adapter's, or one that it makes for the purpose."""
        held = await self._hold(id)
        if held is None:
            return False
        stream, seq = (stored.stream, stored.seq) if stored else (None, None)
        lease = [held["claimed_by"]], [held["claimed_at"]]
        [row] = await fetch(self.pool, self._sql["mark_published"].sql, *lease, [id], stream, [seq])
        return row["kept"] is None

    async def increment_attempts(self, id: str, error: str, *, delay_seconds: float = 0.0) -> bool:  # noqa: A002
        """As ``mark_published``; the failure is counted."""
        held = await self._hold(id)
        if held is None:
            return False
        state = "DEAD" if held["failures"] + 1 >= self.failures_max else "PENDING"
        change = [id], [state], [to_storable_text(error)], [1], [delay_seconds]
        lease = held["claimed_by"], held["claimed_at"]
        [row] = await fetch(self.pool, self._sql["settle"].sql, *lease, *change)
        return row["kept"] is None

    async def mark_published_batch(
        self, claim: Claim, verdicts: Sequence[Published]
    ) -> Mapping[str, datetime]:
        """CLAIMED -> PUBLISHED (CMD-050); the attempt was counted by the claim."""
        if not verdicts:
            return {}
        [stream] = {verdict.stored.stream for verdict in verdicts}
        seqs = [verdict.stored.seq for verdict in verdicts]
        owners, times = zip(*map(_owner_and_time, claim.parts or (claim,)), strict=True)
        kept, row = await self._settle("mark_published", verdicts, owners, times, stream, seqs)
        if self.ordered:
            events = [verdict.event for verdict in verdicts if verdict.event.id in kept]
            self._floors.published(min(times), [(event.ordering_key or "", event.seq) for event in events])
        return dict.fromkeys(kept, row["at"])

    async def increment_attempts_batch(
        self, claim: Claim, verdicts: Sequence[Postponed | Died]
    ) -> frozenset[str]:
        """CLAIMED -> PENDING or DEAD, with the error; errors are cut to 2000 characters."""
        return await self._settle_others(claim, verdicts)

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        """CLAIMED -> PENDING, as if the claim had not been, but for its count."""
        released = await self._settle_others(claim, verdicts)
        if verdicts and not self.ordered:
            self._fresh.rewind()
            self._retries.rewind()
        return released

    async def reap(self) -> Reaped:
        """Look at the front of both lanes, where claims leave their leases, and at a piece of what is behind.

        Whatever waits, that reads a bounded number of rows; from call to call it gets through all of them.
        """
        ended, refused = Counter[str](), list[str]()
        for lane in ("reap", "reap_ordered"):
            at, *ends = await self._look(lane, START, START, ended, refused)
            if ends == [None, None]:
                continue
            await self._look(lane, (at, 0), (at, 0), ended, refused)
            rolled = self._rolled.get(lane, (None, None))
            fresh, retries = (last or end or END for last, end in zip(rolled, ends, strict=True))
            _, *self._rolled[lane] = await self._look(lane, fresh, retries, ended, refused)
        if refused:
            raise RowsRefusedError("; ".join(refused))
        return Reaped(ended["leases"], ended["brought_forward"])

    async def take_over(self, session: str) -> int:
        """End the leases of both lanes in one statement, which keeps the session's worker out."""
        statement = self._sql["take_over"].sql
        [row] = await fetch(self.pool, statement, session, self.failures_max, _TAKE_OVER_ROWS)
        self._reopened(row["keys"])
        return int(row["leases"])

    async def _look(
        self, lane: str, fresh: Position, retries: Position, ended: Counter[str], refused: list[str]
    ) -> tuple[datetime, Position | None, Position | None]:
        """End what is wrong in a bounded part of both indexes; return the time, and how far it read each.

        None: to the end. Where PostgreSQL refuses to change an event, end fewer leases at once until it is
        alone, and pass it over.
        """
        passed_over = list[int]()

        async def end_wrong(limit: int) -> Any:
            given = self.lease_seconds, limit, self.failures_max, self.look_max, *fresh, *retries
            statement = self._sql[lane].sql
            [row] = await fetch(self.pool, statement, *given, self.delay_max_seconds(), passed_over)
            return row

        limit = _REAP_MAX
        while True:
            try:
                row = await end_wrong(limit)
            except RowsRefusedError as error:
                if limit > 1:
                    limit //= 2
                elif (seq := (await end_wrong(0))["first_wrong"]) is not None:
                    passed_over.append(seq)
                    refused.append(f"seq {seq}: {error}")
                continue
            ended.update(leases=row["leases"], brought_forward=row["brought_forward"])
            self._reopened(row["keys"])
            if row["leases"] + row["brought_forward"] < limit:
                return row["at"], _end(row, "fresh"), _end(row, "retry")
            limit = min(2 * limit, _REAP_MAX)

    async def _claim(
        self, batch_max: int, bytes_max: int, event_bytes_max: int, following: Sequence[str]
    ) -> Claim:
        """Claim, and move the cursors behind what was read."""
        owner = f"{self._owner_prefix}{secrets.token_hex(4)}"
        began = self.clock()
        head, events = await self._take(owner, batch_max, bytes_max, event_bytes_max, following)
        seconds, at = self.clock() - began, head["claimed_at"]
        retry_places = self._retry_places(batch_max)
        full = len(events) == batch_max or bool(head["cut"] and events)
        fresh_full = retries_full = left_over = False
        if self.ordered:
            self._floors.claimed(at, [event.seq for event in events], head["running"])
            self._hints.update(head["leftover"])
            left_over = bool(head["leftover"] and events)
            self._behind.update(head["behind"])
            while len(self._behind) > _BEHIND_MAX:
                self._behind.pop()  # a sweep finds its events
            fresh_full = head["fresh_count"] == batch_max
            retries_full = head["retry_count"] == (retry_places if fresh_full else batch_max)
        for cursor, name, has_more in (
            (self._fresh, "fresh", fresh_full),
            (self._retries, "retry", retries_full),
        ):
            cursor.advance(
                _end(head, name) or START,
                now=head["at"],
                truncated=full or has_more,
                found_any=bool(events),
                seconds=seconds,
            )
        if events:
            self._owners.append(owner)
        return Claim(
            token=f"{at.isoformat()} {owner}" if events else "",
            at=at,
            events=tuple(events),
            more=full or fresh_full or left_over or (retries_full and retry_places > 0),
            bytes=head["bytes"],
            cut=head["cut"],
        )

    def _retry_places(self, batch_max: int) -> int:
        """Keep a quarter of the places for retries; of a batch too small to divide, every other one."""
        return batch_max // 4 or int(self._retries_first)

    async def _take(
        self,
        owner: str,
        batch_max: int,
        bytes_max: int,
        event_bytes_max: int,
        following: Sequence[str],
        *,
        names_only: bool = False,
    ) -> tuple[Any, list[OutboxEvent]]:
        """Run the lane's claim; ``names_only``: lease nothing, and name what it would lease."""
        (fresh_at, fresh_seq), (retry_at, retry_seq) = self._fresh.next(), self._retries.next()
        given: dict[str, object] = {
            "limit": batch_max,
            "claimed_by": owner,
            "fresh_at": fresh_at,
            "fresh_seq": fresh_seq,
            "retry_at": retry_at,
            "retry_seq": retry_seq,
            "retry_places": self._retry_places(batch_max),
            "batch_bytes_max": bytes_max,
            "event_bytes_max": event_bytes_max,
            "passed_over": list(self._passed_over),
            "names_only": names_only,
        }
        if not self.ordered:
            statement = self._sql["claim"].bind(**given, retries_first=self._retries_first)
            return _split(await fetch(self.pool, *statement))
        hints, self._hints = self._hints, set()
        given |= {
            "run_max": self.run_max,
            "hold_dead_keys": self.hold_dead_keys,
            "following": following,
            "hints": list(hints),
            "place": self._share.place,
            "workers": self._share.workers,
            **self._floors.bind(),
        }
        try:
            taken = _split(await fetch(self.pool, *self._sql["claim_ordered"].bind(**given)))
        except BaseException:
            self._hints |= hints
            raise
        if names_only:
            self._hints |= hints
        return taken

    async def _settle_others(
        self, claim: Claim, verdicts: Sequence[Postponed | Died | Released]
    ) -> frozenset[str]:
        if not verdicts:
            return frozenset()
        self._floors.forget(verdict.event.ordering_key or "" for verdict in verdicts)
        changes = zip(*map(_changes, verdicts), strict=True)
        return (await self._settle("settle", verdicts, *_owner_and_time(claim), *changes))[0]

    async def _settle(
        self, statement: str, verdicts: Sequence[Verdict], owner: object, time: object, *columns: object
    ) -> tuple[frozenset[str], asyncpg.Record]:
        """Run a statement that takes owner and time of claims, the events' IDs, and more columns."""
        ids = [verdict.event.id for verdict in verdicts]
        [row] = await fetch(self.pool, self._sql[statement].sql, owner, time, ids, *columns)
        kept = frozenset(ids if row["kept"] is None else row["kept"])
        if self._behind:
            self._free(verdict.event.ordering_key or "" for verdict in verdicts if verdict.event.id in kept)
        return kept, row

    def _reopened(self, keys: Iterable[str]) -> None:
        """Let the next claim look up keys of which leases were ended, from their first event."""
        if self.ordered:
            keys = list(keys)
            self._hints.update(keys)
            self._floors.forget(keys)

    def _free(self, settled: Iterable[str]) -> None:
        """Let the next claim look up those of the keys that have later events, which a claim has read."""
        freed = self._behind.intersection(settled)
        self._behind -= freed
        self._hints |= freed

    async def _hold(self, event_id: str) -> Any:
        """Claim an event unless it is claimed; return its claim if it is this adapter's, else None."""
        owner = f"{self._owner_prefix}{secrets.token_hex(4)}"
        if await fetch(self.pool, self._sql["claim_one"].sql, event_id, owner):
            self._owners.append(owner)
        rows = await fetch(self.pool, self._sql["held"].sql, event_id)
        if not rows or rows[0]["claimed_by"] not in self._owners:
            return None
        if self.ordered:
            key = rows[0]["ordering_key"] or ""
            self._behind.add(key)
            self._floors.forget([key])
        return rows[0]


def _split(rows: Sequence[Any]) -> tuple[Any, list[OutboxEvent]]:
    """Return the row that describes the claim, and the events in insert order."""
    [head] = [row for row in rows if row["id"] is None]
    events = [OutboxEvent._make(row[_EVENT]) for row in rows if row is not head]
    return head, sorted(events, key=attrgetter("seq"))


def _end(row: Any, name: str) -> Position | None:
    at = row[f"{name}_at"]
    return at and (at, row[f"{name}_seq"])


def _owner_and_time(claim: Claim) -> tuple[str, datetime]:
    time, owner = claim.token.split(" ", 1)
    return owner, datetime.fromisoformat(time)


def _changes(verdict: Postponed | Died | Released) -> tuple[object, ...]:
    """Return state, error, failures to add and delay as ``settle`` takes them."""
    match verdict:
        case Postponed(_, error, delay_seconds, failed):
            return "PENDING", to_storable_text(error), int(failed), delay_seconds
        case Died(_, error):
            return "DEAD", to_storable_text(error), 1, None
        case Released():
            return "PENDING", None, 0, None
        case _:
            assert_never(verdict)
