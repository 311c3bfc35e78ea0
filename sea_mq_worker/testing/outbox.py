"""In-memory fake of the PostgreSQL outbox: the same lifecycle, leases, lanes and order, on a given clock."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never
from uuid import UUID

from sea_mq_worker.nats.message import Stored
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.outbox.event import (
    BATCH_MAX,
    NO_BYTES_MAX,
    NOTHING_CLAIMED,
    Claim,
    Died,
    EventState,
    OutboxEvent,
    Postponed,
    Published,
    Reaped,
    Released,
    Verdict,
)
from sea_mq_worker.testing import EPOCH

_ERROR_CHARS_MAX = 2000
_NOT_YET_SECONDS = 60.0
"""An event that occurs at most this many seconds in the future is not postponed."""
_REAP_DELAY_MAX_SECONDS = 60.0
_REAP_DOUBLINGS_MAX = 6
_CLAIM_DIGITS = 8
"""Digits of a claim in the token, behind those of the session."""


@dataclass(slots=True, kw_only=True)
class OutboxRow:
    """One row; times are the clock's seconds, None where PostgreSQL has null."""

    id: str
    seq: int
    event_type: str
    payload: bytes
    created_at: float
    available_at: float
    ordering_key: str | None = None
    partition_key: str = ""
    headers: str = ""
    metadata: str = ""
    aggregate_type: str = "order"
    aggregate_id: str = "o-1"
    event_version: int = 1
    correlation_id: str = ""
    causation_id: str = ""
    state: EventState = EventState.PENDING
    attempts: int = 0
    failures: int = 0
    first_attempt_at: float | None = None
    claimed_at: float | None = None
    claimed_by: str | None = None
    published_at: float | None = None
    error: str | None = None
    stream: str = ""
    stream_seq: int = 0

    @property
    def bytes(self) -> int:
        """Number of bytes that a worker would have to read."""
        texts = self.headers, self.metadata, self.aggregate_type, self.aggregate_id
        return len(self.payload) + sum(map(len, (*texts, self.event_type, self.partition_key)))


@dataclass(slots=True)
class OutboxTable:
    """State shared by all adapters of one database."""

    clock: Callable[[], float]
    rows: dict[str, OutboxRow] = field(default_factory=dict)
    claims: Iterator[int] = field(default_factory=itertools.count)
    held_sessions: set[str] = field(default_factory=set)
    """Sessions of workers that live."""
    _seq: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def add(
        self,
        id: str,  # noqa: A002 - the column's name
        *,
        event_type: str = "order.created",
        payload: bytes = b"{}",
        ordering_key: str | None = None,
        delay_seconds: float = 0.0,
        headers: str = "",
        metadata: str = "",
    ) -> None:
        """Commit one event."""
        now = self.clock()
        if id in self.rows:
            raise ValueError(f"{id} is there already")
        self.rows[id] = OutboxRow(
            id=id,
            seq=next(self._seq),
            event_type=event_type,
            payload=payload,
            created_at=now,
            available_at=now + delay_seconds,
            ordering_key=ordering_key,
            headers=headers,
            metadata=metadata,
        )

    def replay(self, id: str) -> None:  # noqa: A002 - the column's name
        """Start another lifecycle of a published or dead event."""
        row = self.rows[id]
        if row.state not in {EventState.PUBLISHED, EventState.DEAD}:
            raise ValueError(f"{id} is {row.state}")
        row.state = EventState.PENDING
        row.attempts = row.failures = 0
        row.published_at = row.first_attempt_at = row.error = None
        row.available_at = self.clock()


def matches(row: OutboxRow, which: OutboxFilter) -> bool:
    """Return whether a filter, apart from its page, selects an event."""
    exact = (
        (which.event_type, row.event_type),
        (which.ordering_key, row.ordering_key),
        (which.aggregate_type, row.aggregate_type),
        (which.aggregate_id, row.aggregate_id),
        (which.correlation_id and str(which.correlation_id), row.correlation_id),
    )
    created_at = EPOCH + timedelta(seconds=row.created_at)
    return (
        row.state in which.states
        and (which.ids is None or UUID(row.id) in which.ids)
        and all(wanted in {None, found} for wanted, found in exact)
        and (which.since is None or which.since <= created_at)
        and (which.until is None or created_at < which.until)
        and (which.error_like or "").lower() in (row.error or "").lower()
    )


@dataclass(kw_only=True, eq=False)
class InMemoryOutbox:
    """One lane of an ``OutboxTable`` as a publisher sees it; see ``ports.outbox.OutboxRepository``.

    Attributes:
        random: draws the delays after leases that ran out.
    """

    table: OutboxTable
    worker: str
    lease_seconds: float
    ordered: bool
    hold_dead_keys: bool
    failures_max: int
    random: Callable[[], float]
    delay_max_seconds: Callable[[], float] = lambda: 31_536_000.0
    run_max: int = 100
    session: str = ""
    _retries_first: bool = False
    _owners: set[str] = field(default_factory=set)

    async def find_unpublished(
        self,
        *,
        batch_max: int = BATCH_MAX,
        bytes_max: int = NO_BYTES_MAX,
        event_bytes_max: int = NO_BYTES_MAX,
    ) -> Claim:
        """Lease due events; a quarter of the limit is reserved for retries."""
        looked = self._looked_at(batch_max)
        sizes = [row.bytes if row.bytes <= event_bytes_max else 0 for row in looked]
        through = list(itertools.accumulate(sizes))
        fitting = [all_ in {own, min(all_, bytes_max)} for own, all_ in zip(sizes, through, strict=True)]
        chosen = list(itertools.compress(looked, fitting))
        if not chosen:
            return NOTHING_CLAIMED
        owner = self._owner()
        cut = len(chosen) < len(looked)
        return Claim(
            token=owner,
            at=EPOCH + timedelta(seconds=self.table.clock()),
            events=tuple(
                self._lease(row, owner, withheld=row.bytes > event_bytes_max)
                for row in sorted(chosen, key=lambda row: row.seq)
            ),
            more=cut or len(chosen) == batch_max,
            bytes=through[len(chosen) - 1],
            cut=cut,
        )

    async def mark_published(self, id: str, *, stored: Stored | None = None) -> bool:  # noqa: A002 - SDS-047's
        """Settle a claim of this outbox's, or one that it makes for the purpose."""
        row = self._hold(id)
        if row:
            self._change(row, Published(self._event(row, withheld=True), stored or Stored("", 0)))
        return row is not None

    async def increment_attempts(self, id: str, error: str, *, delay_seconds: float = 0.0) -> bool:  # noqa: A002
        """As ``mark_published``; the failure is counted."""
        row = self._hold(id)
        if row:
            event = self._event(row, withheld=True)
            dead = row.failures + 1 >= self.failures_max
            self._change(
                row, Died(event, error) if dead else Postponed(event, error, delay_seconds, failed=True)
            )
        return row is not None

    async def mark_published_batch(
        self, claim: Claim, verdicts: Sequence[Published]
    ) -> Mapping[str, datetime]:
        """CLAIMED -> PUBLISHED."""
        now = EPOCH + timedelta(seconds=self.table.clock())
        return dict.fromkeys(self._settle(claim, verdicts), now)

    async def increment_attempts_batch(
        self, claim: Claim, verdicts: Sequence[Postponed | Died]
    ) -> frozenset[str]:
        """CLAIMED -> PENDING or DEAD."""
        return self._settle(claim, verdicts)

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        """CLAIMED -> PENDING, due at once."""
        return self._settle(claim, verdicts)

    async def reap(self) -> Reaped:
        """End leases, of both lanes, and waits that only a clock set back makes long."""
        now = self.table.clock()
        wrong = [row for row in self.table.rows.values() if self._is_wrong(row, now)]
        leases = [row for row in wrong if row.state is EventState.CLAIMED]
        for row in wrong:
            if row.claimed_at is not None and row.claimed_at <= now:
                self._end_lease(row, now)
            else:
                row.state, row.claimed_at, row.claimed_by = EventState.PENDING, None, None
                row.available_at = min(row.available_at, now)
        return Reaped(len(leases), len(wrong) - len(leases))

    async def take_over(self, session: str) -> int:
        """End the leases of a session, of both lanes, unless its worker lives."""
        if session in self.table.held_sessions:
            return 0
        now = self.table.clock()
        left = [
            row
            for row in self.table.rows.values()
            if row.claimed_by is not None and _session(row.claimed_by) == session
        ]
        for row in left:
            failed_before = row.failures > 0
            self._end_lease(row, now)
            row.available_at = row.available_at if failed_before else now
        return len(left)

    def _is_wrong(self, row: OutboxRow, now: float) -> bool:
        if row.claimed_at is not None:
            return abs(now - row.claimed_at) > self.lease_seconds
        if row.state is not EventState.PENDING or row.available_at <= now:
            return False
        if row.error is None:
            return row.created_at > now and row.available_at <= row.created_at + _NOT_YET_SECONDS
        tried_ahead = row.first_attempt_at is not None and row.first_attempt_at > now
        return tried_ahead or row.available_at > now + self.delay_max_seconds()

    def _looked_at(self, batch_max: int) -> list[OutboxRow]:
        """Return what there are places for, in the order in which it takes up the claim's bytes."""
        candidates = sorted(self._runs(), key=lambda row: row.seq) if self.ordered else self._due()
        self._retries_first = not self._retries_first
        kept = batch_max // 4 or int(self._retries_first)
        retried = [row for row in candidates if row.error is not None]
        fresh = [row for row in candidates if row.error is None][: batch_max - min(kept, len(retried))]
        retried = retried[: batch_max - len(fresh)]
        if self.ordered:
            return sorted(self._unbroken(fresh + retried), key=lambda row: row.seq)
        placed = [(nth + (nth - 1) // 3, row) for nth, row in enumerate(fresh, start=1)]
        placed += [(4 * nth - 4 * self._retries_first, row) for nth, row in enumerate(retried, start=1)]
        return [row for _, row in sorted(placed, key=lambda at: at[0])]

    def _lane(self) -> Iterable[OutboxRow]:
        return (row for row in self.table.rows.values() if (row.ordering_key is not None) == self.ordered)

    def _due(self) -> list[OutboxRow]:
        return sorted(filter(self._ready, self._lane()), key=lambda row: (row.available_at, row.seq))

    def _ready(self, row: OutboxRow) -> bool:
        return row.state is EventState.PENDING and row.available_at <= self.table.clock()

    def _runs(self) -> Iterable[OutboxRow]:
        """Give each key's events from its head on, up to one that is not ready, or has failed before."""
        unfinished = [row for row in self._lane() if row.state is not EventState.PUBLISHED]
        by_key = sorted(unfinished, key=lambda row: (row.ordering_key or "", row.seq))
        for _, rows in itertools.groupby(by_key, key=lambda row: row.ordering_key):
            yield from self._run(rows)

    def _run(self, rows: Iterable[OutboxRow]) -> Iterable[OutboxRow]:
        length = 0
        for row in rows:
            if row.state is EventState.DEAD and not self.hold_dead_keys:
                continue
            if not self._ready(row) or length == self.run_max:
                return
            yield row
            length += 1
            if row.error is not None:
                return

    def _unbroken(self, chosen: list[OutboxRow]) -> list[OutboxRow]:
        """Drop what would overtake an event of its key that found no place."""
        ids = {row.id for row in chosen}
        kept = []
        missed: set[str | None] = set()
        for row in self._runs():
            if row.id not in ids:
                missed.add(row.ordering_key)
            elif row.ordering_key not in missed:
                kept.append(row)
        return kept

    def _owner(self) -> str:
        owner = f"{self.worker}#{self.session}{next(self.table.claims):08x}"
        self._owners.add(owner)
        return owner

    def _hold(self, event_id: str) -> OutboxRow | None:
        """Claim an event unless it is claimed; return its row if the claim is this outbox's."""
        row = self.table.rows.get(event_id)
        if row and self._ready(row):
            self._lease(row, self._owner(), withheld=True)
        return row if row and row.claimed_by in self._owners else None

    def _lease(self, row: OutboxRow, owner: str, *, withheld: bool) -> OutboxEvent:
        now = self.table.clock()
        row.state = EventState.CLAIMED
        row.claimed_at, row.claimed_by = now, owner
        row.attempts += 1
        row.first_attempt_at = now if row.first_attempt_at is None else row.first_attempt_at
        return self._event(row, withheld=withheld)

    def _event(self, row: OutboxRow, *, withheld: bool) -> OutboxEvent:
        now = self.table.clock()
        first_attempt_at = now if row.first_attempt_at is None else row.first_attempt_at
        return OutboxEvent(
            id=row.id,
            seq=row.seq,
            aggregate_type=row.aggregate_type,
            aggregate_id=row.aggregate_id,
            event_type=row.event_type,
            event_version=row.event_version,
            payload=b"" if withheld else row.payload,
            occurred_at=EPOCH + timedelta(seconds=row.created_at),
            correlation_id=row.correlation_id,
            causation_id=row.causation_id,
            partition_key=row.partition_key,
            ordering_key=row.ordering_key,
            headers="" if withheld else row.headers,
            metadata="" if withheld else row.metadata,
            attempts=row.attempts,
            failures=row.failures,
            age_seconds=now - min(row.available_at, first_attempt_at),
            attempted_seconds_ago=now - first_attempt_at,
            earlier_stream_seq=row.stream_seq,
            withheld_bytes=row.bytes if withheld else 0,
        )

    def _settle(self, claim: Claim, verdicts: Sequence[Verdict]) -> frozenset[str]:
        rows = self.table.rows
        tokens = {part.token for part in claim.parts or (claim,)}
        leased = [verdict for verdict in verdicts if rows[verdict.event.id].claimed_by in tokens]
        for verdict in leased:
            self._change(rows[verdict.event.id], verdict)
        return frozenset(verdict.event.id for verdict in leased)

    def _change(self, row: OutboxRow, verdict: Verdict) -> None:
        now = self.table.clock()
        match verdict:
            case Published(_, stored):
                row.state, row.published_at, row.error = EventState.PUBLISHED, now, None
                row.stream, row.stream_seq = stored.stream, stored.seq
            case Postponed(_, error, delay_seconds, failed):
                row.state, row.error = EventState.PENDING, error[:_ERROR_CHARS_MAX]
                row.available_at = now + delay_seconds
                row.failures += failed
            case Died(_, error):
                row.state, row.error = EventState.DEAD, error[:_ERROR_CHARS_MAX]
                row.failures += 1
            case Released():
                row.state = EventState.PENDING
                if row.first_attempt_at == row.claimed_at:
                    row.first_attempt_at = None
            case _:
                assert_never(verdict)
        row.claimed_at = row.claimed_by = None

    def _end_lease(self, row: OutboxRow, now: float) -> None:
        claimed_at = now if row.claimed_at is None else row.claimed_at
        owner = (row.claimed_by or "").rpartition("#")[0]
        row.failures += 1
        row.state = EventState.DEAD if row.failures >= self.failures_max else EventState.PENDING
        row.error = f"the lease of {owner} ran out after {now - claimed_at:.1f} s"
        bound = min(2.0 ** min(row.failures, _REAP_DOUBLINGS_MAX), _REAP_DELAY_MAX_SECONDS)
        row.available_at = now + self.random() * bound
        row.claimed_at = row.claimed_by = None


def _session(token: str) -> str:
    return token.rpartition("#")[2][:-_CLAIM_DIGITS]
