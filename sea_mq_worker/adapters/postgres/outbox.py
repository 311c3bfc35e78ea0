"""PostgresOutboxAdapter: one lane of the outbox, in two round trips a batch."""

import asyncio
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, assert_never

import asyncpg

from sea_mq_worker.adapters.postgres.claim_cursor import END, START, ClaimCursor, Look, Position, Scan
from sea_mq_worker.adapters.postgres.connection import fetch, to_storable_text
from sea_mq_worker.adapters.postgres.lane_turn import PostgresLaneTurn
from sea_mq_worker.adapters.postgres.queries import load_named
from sea_mq_worker.adapters.postgres.refusals import Refusals
from sea_mq_worker.domain.errors import RowsRefusedError
from sea_mq_worker.domain.events import BATCH_MAX, NO_BYTES_MAX, Claim, OutboxEvent
from sea_mq_worker.domain.outcomes import Died, Postponed, Published, Reaped, Released, Stored, Verdict

_REFUSALS_MAX = 20
_REFUSAL_SECONDS = 0.005
_REAP_MAX = 500
_TAKE_OVER_ROWS = 20_000
"""Rows of each index that a takeover reads; more than all claims of some workers."""
_OWNERS_MAX = 100
"""Claims that ``mark_published`` and ``increment_attempts`` remember."""
_YEAR_SECONDS = 31_536_000.0
_EVENT = slice(-len(OutboxEvent._fields), None)
"""Position of the event in a row of a claim."""


@dataclass(kw_only=True, eq=False, repr=False)
class PostgresOutboxAdapter:
    """Leases, settles and reaps the events of one lane; see ``ports.outbox.OutboxRepository``.

    One adapter claims the events that have an ordering key, another those that have none; either one reaps
    both. Safe to use from several tasks.

    Attributes:
        pool: opened with ``WORKER_HINTS``.
        worker: name in ``claimed_by``, for people; it need not be unique, because a token fences claims.
        lease_seconds: length of a claim's lease, by the database's clock.
        ordered: claim the events with an ordering key; False: those without one.
        hold_dead_keys: a DEAD event holds the later events of its key.
        failures_max: number of failures, expired leases included, after which an event is DEAD.
        delay_max_seconds: returns the longest delay of a retry; a retry due later was written while the clock
            was ahead.
        run_max: maximum number of events of one key in a claim.
        look_max: maximum number of index rows that one search for expired leases reads.
        take_turns: claims of several workers in the ordered lane take turns.
        lane: executes the claims of the ordered lane; None: the pool does.
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
    take_turns: bool = True
    lane: PostgresLaneTurn | None = None
    session: str = ""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._owner_prefix = f"{self.worker}#{self.session}"
        self._fetch_ordered = self.lane.fetch if self.lane else partial(fetch, self.pool)
        self._sql = load_named("outbox")
        self._owners: deque[str] = deque(maxlen=_OWNERS_MAX)
        self._fresh = ClaimCursor(self.clock)
        self._retries = ClaimCursor(self.clock)
        self._retries_first = False
        self._rolled: dict[str, tuple[Position | None, Position | None]] = defaultdict(lambda: (None, None))
        self._hints: set[str] = set()
        self._unreaped: list[str] = []
        self._refusals = Refusals(self.pool, run_max=self.run_max, clock=self.clock)

    async def find_unpublished(
        self,
        *,
        batch_max: int = BATCH_MAX,
        bytes_max: int = NO_BYTES_MAX,
        event_bytes_max: int = NO_BYTES_MAX,
    ) -> Claim:
        """Lease due events; neither retries nor first tries can take all places of a full batch."""
        claim = self._claim_ordered if self.ordered else self._claim
        limits = batch_max, bytes_max, event_bytes_max
        try:
            return await claim(*limits)
        except RowsRefusedError:
            refused = await self._refusals.find(
                self._fresh.next(),
                self._retries.next(),
                limit=batch_max,
                keys=list(self._hints) if self.ordered else None,
            )
            if not refused:
                raise
            return replace(await claim(*limits), refused=tuple(refused))

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
        self._unreaped = []
        lanes = [await self._reap_lane(statement) for statement in ("reap", "reap_ordered")]
        if self._unreaped:
            raise RowsRefusedError("; ".join(self._unreaped))
        return Reaped(*map(sum, zip(*lanes, strict=True)))

    async def take_over(self, session: str) -> int:
        """End the leases of both lanes in one statement, which keeps the session's worker out."""
        statement = self._sql["take_over"].sql
        [row] = await fetch(self.pool, statement, session, self.failures_max, _TAKE_OVER_ROWS)
        if self.ordered:
            self._hints.update(row["keys"])
        return int(row["leases"])

    async def _reap_lane(self, statement: str) -> Reaped:
        front = await self._look(statement, START, START)
        if front.ends == (None, None):
            return front.reaped
        ahead = await self._look(statement, (front.at, 0), (front.at, 0))
        begin = [
            rolled or first or END for rolled, first in zip(self._rolled[statement], front.ends, strict=True)
        ]
        behind = await self._look(statement, *begin)
        self._rolled[statement] = behind.ends
        return Reaped(*map(sum, zip(front.reaped, ahead.reaped, behind.reaped, strict=True)))

    async def _look(self, statement: str, fresh: Position, retries: Position) -> Look:
        """Look at a bounded part of both indexes, again and again until nothing in it is wrong."""
        ended = Reaped(0, 0)
        while True:
            try:
                look = await self._look_once(statement, fresh, retries)
            except RowsRefusedError:
                return await self._look_apart(statement, fresh, retries)
            ended = Reaped(*map(sum, zip(ended, look.reaped, strict=True)))
            if sum(look.reaped) < _REAP_MAX:
                return look._replace(reaped=ended)

    async def _look_once(
        self,
        statement: str,
        fresh: Position,
        retries: Position,
        *,
        rows: int | None = None,
        limit: int = _REAP_MAX,
    ) -> Look:
        limits = self.lease_seconds, limit, self.failures_max, rows or self.look_max
        [row] = await fetch(
            self.pool, self._sql[statement].sql, *limits, *fresh, *retries, self.delay_max_seconds()
        )
        if self.ordered:
            self._hints.update(row["keys"])
        reaped = Reaped(row["leases"], row["brought_forward"])
        return Look(reaped, row["at"], (_end(row, "fresh"), _end(row, "retry")))

    async def _look_apart(self, statement: str, fresh: Position, retries: Position) -> Look:
        """Look in ever smaller pieces, and step over the events that PostgreSQL refuses to change."""
        one = await self._walk(statement, lambda place: (place, END), fresh)
        other = await self._walk(statement, lambda place: (END, place), retries)
        reaped = Reaped(*map(sum, zip(one.reaped, other.reaped, strict=True)))
        return Look(reaped, other.at, (one.ends[0], other.ends[1]))

    async def _walk(
        self, statement: str, both: Callable[[Position], tuple[Position, Position]], begin: Position
    ) -> Look:
        """Walk along one index, over as many rows as a look at it."""
        left, rows, places = self.look_max, self.look_max, both(begin)
        ended = Reaped(0, 0)
        while True:
            try:
                look = await self._look_once(statement, *places, rows=rows)
            except RowsRefusedError as error:
                if rows > 1:
                    rows //= 2
                    continue
                look = await self._look_once(statement, *places, rows=rows, limit=0)
                [seq] = [end[1] for end in look.ends if end] or [0]
                self._unreaped.append(f"seq {seq}: {error}")
            ended = Reaped(*map(sum, zip(ended, look.reaped, strict=True)))
            if sum(look.reaped) == _REAP_MAX:
                continue
            left -= rows
            rows = min(2 * rows, left)
            end = look.ends[0] or look.ends[1]
            if end is None or not left:
                return look._replace(reaped=ended)
            places = both(end)

    async def _claim(self, batch_max: int, *bytes_max: int) -> Claim:
        owner = self._owner()
        began = self.clock()
        given = self._claim_parameters(owner, batch_max, *bytes_max)
        claim = self._sql["claim"].bind(**given, retries_first=self._retries_first)
        rows = await fetch(self.pool, *claim)
        seconds = self.clock() - began
        head, events = _split(rows)
        full = len(events) == batch_max or head["cut"]
        for cursor, name in ((self._fresh, "fresh"), (self._retries, "retry")):
            read = Scan(_position(head, name), now=head["at"], truncated=full, found_any=bool(events))
            cursor.advance(read, seconds=seconds)
        return _claim_of(owner, head, events, more=full)

    async def _claim_ordered(self, batch_max: int, *bytes_max: int) -> Claim:
        owner = self._owner()
        hints, self._hints = self._hints, set()
        began = self.clock()
        given = self._claim_parameters(owner, batch_max, *bytes_max)
        try:
            head, events = await self._take_turn({**given, "hints": list(hints)})
        except BaseException:
            self._hints |= hints
            raise
        seconds = self.clock() - began
        self._hints.update(head["leftover"])
        cut = len(events) == batch_max or (head["cut"] and bool(events))
        fresh_full = head["fresh_count"] == batch_max
        retry_places = given["retry_places"]
        retries_full = head["retry_count"] == (retry_places if fresh_full else batch_max)
        for cursor, name, full in (
            (self._fresh, "fresh", fresh_full),
            (self._retries, "retry", retries_full),
        ):
            read = Scan(_position(head, name), now=head["at"], truncated=full or cut, found_any=bool(events))
            cursor.advance(read, seconds=seconds)
        return _claim_of(owner, head, events, more=cut or fresh_full or (retries_full and retry_places > 0))

    def _claim_parameters(
        self, owner: str, batch_max: int, batch_bytes_max: int, event_bytes_max: int
    ) -> dict[str, Any]:
        """Return the parameters that both claims have.

        A quarter of the places is kept for retries; of a batch too small to divide, every other one.
        """
        self._retries_first = not self._retries_first
        fresh, retry = self._fresh.next(), self._retries.next()
        return {
            "limit": batch_max,
            "claimed_by": owner,
            "fresh_at": fresh[0],
            "fresh_seq": fresh[1],
            "retry_at": retry[0],
            "retry_seq": retry[1],
            "retry_places": batch_max // 4 or int(self._retries_first),
            "batch_bytes_max": batch_bytes_max,
            "event_bytes_max": event_bytes_max,
            "passed_over": self._refusals.passed_over,
        }

    async def _take_turn(self, given: Mapping[str, object]) -> tuple[Any, list[OutboxEvent]]:
        """Claim in turn with other workers; after a bounded number of refusals, out of turn.

        Two claims at once are correct, but the second one reads the rows that the first has locked.
        """

        async def claim(*, take_turns: bool) -> tuple[Any, list[OutboxEvent]]:
            statement = self._sql["claim_ordered"].bind(
                **given, take_turns=take_turns, run_max=self.run_max, hold_dead_keys=self.hold_dead_keys
            )
            return _split(await self._fetch_ordered(*statement))

        for _ in range(_REFUSALS_MAX if self.take_turns else 0):
            head, events = await claim(take_turns=True)
            if head["my_turn"]:
                return head, events
            await asyncio.sleep(_REFUSAL_SECONDS)
        return await claim(take_turns=False)

    async def _settle_others(
        self, claim: Claim, verdicts: Sequence[Postponed | Died | Released]
    ) -> frozenset[str]:
        if not verdicts:
            return frozenset()
        changes = zip(*map(_changes, verdicts), strict=True)
        kept, _ = await self._settle("settle", verdicts, *_owner_and_time(claim), *changes)
        return kept

    async def _settle(
        self, statement: str, verdicts: Sequence[Verdict], owner: object, time: object, *columns: object
    ) -> tuple[frozenset[str], asyncpg.Record]:
        """Run a statement that takes owner and time of claims, the events' IDs, and more columns."""
        ids = [verdict.event.id for verdict in verdicts]
        [row] = await fetch(self.pool, self._sql[statement].sql, owner, time, ids, *columns)
        kept = frozenset(ids if row["kept"] is None else row["kept"])
        if self.ordered:
            self._hints.update(v.event.ordering_key or "" for v in verdicts if v.event.id in kept)
        return kept, row

    async def _hold(self, event_id: str) -> Any:
        """Claim an event unless it is claimed; return its claim if it is this adapter's, else None."""
        await fetch(self.pool, self._sql["claim_one"].sql, event_id, self._owner())
        rows = await fetch(self.pool, self._sql["held"].sql, event_id)
        if not rows or rows[0]["claimed_by"] not in self._owners:
            return None
        if self.ordered:
            self._hints.add(rows[0]["ordering_key"] or "")
        return rows[0]

    def _owner(self) -> str:
        """Name one claim: two claims of one worker in the same microsecond stay apart."""
        self._owners.append(f"{self._owner_prefix}{secrets.token_hex(4)}")
        return self._owners[-1]


def _split(rows: Sequence[Any]) -> tuple[Any, list[OutboxEvent]]:
    """Return the row that describes the claim, and the events in insert order."""
    [head] = [row for row in rows if row["id"] is None]
    events = [OutboxEvent._make(row[_EVENT]) for row in rows if row is not head]
    return head, sorted(events, key=attrgetter("seq"))


def _end(row: Any, name: str) -> Position | None:
    at = row[f"{name}_at"]
    return at and (at, row[f"{name}_seq"])


def _position(head: Any, name: str) -> Position:
    return _end(head, name) or START


def _claim_of(owner: str, head: Any, events: Sequence[OutboxEvent], *, more: bool) -> Claim:
    token = f"{head['claimed_at'].isoformat()} {owner}" if events else ""
    return Claim(
        token=token,
        at=head["claimed_at"],
        events=tuple(events),
        more=more,
        bytes=head["bytes"],
        cut=head["cut"],
    )


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
