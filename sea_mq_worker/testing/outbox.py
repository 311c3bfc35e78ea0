"""In-memory fake of the outbox, on a given clock: it keeps the order of keys, fences and leases.

It promises what the port does. How PostgreSQL shares a claim between retries and first tries, and how it
looks for expired leases, only PostgreSQL shows.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never
from zlib import crc32

from sea_mq_worker.nats.message import Stored
from sea_mq_worker.outbox.event import (
    BATCH_DEFAULT,
    NO_BYTES_MAX,
    NOTHING_CLAIMED,
    WHOLE,
    Claim,
    Died,
    EventState,
    OutboxEvent,
    Postponed,
    Published,
    Reaped,
    Released,
    Share,
    Verdict,
)
from sea_mq_worker.testing import EPOCH

_ERROR_CHARS_MAX = 2000
_NOT_YET_SECONDS = 60.0
"""An event that occurs at most this many seconds in the future is not postponed."""
_REAP_DELAY_MAX_SECONDS = 60.0
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
    """State shared by all adapters of one database; ``held_sessions``: sessions of workers that live."""

    clock: Callable[[], float]
    rows: dict[str, OutboxRow] = field(default_factory=dict)
    claims: Iterator[int] = field(default_factory=itertools.count)
    held_sessions: set[str] = field(default_factory=set)
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


@dataclass(kw_only=True, eq=False)
class InMemoryOutbox:
    """One lane of an ``OutboxTable`` as a publisher sees it; see ``ports.OutboxRepository``.

    ``ordered``: the lane of the events with an ordering key. ``random`` draws the delays after leases that
    ran out.
    """

    table: OutboxTable
    worker: str
    lease_seconds: float
    ordered: bool
    hold_dead_keys: bool
    failures_max: int
    random: Callable[[], float]
    delay_max_seconds: Callable[[], float] = lambda: 31_536_000.0
    session: str = ""
    _owners: set[str] = field(default_factory=set)

    @property
    def has_freed(self) -> bool:
        return self.ordered

    async def find_unpublished(
        self,
        *,
        batch_max: int = BATCH_DEFAULT,
        bytes_max: int = NO_BYTES_MAX,
        event_bytes_max: int = NO_BYTES_MAX,
        following: Sequence[Claim] = (),
        share: Share = WHOLE,
    ) -> Claim:
        """Lease due events, the longest due first; of keys, in insert order."""
        lane = [row for row in self.table.rows.values() if (row.ordering_key is not None) == self.ordered]
        if self.ordered:
            lane = [
                row for row in lane if crc32((row.ordering_key or "").encode()) % share.workers == share.place
            ]
            followed = {claim.token for claim in following}
            due = sorted(self._runs(lane, followed), key=lambda row: row.seq)[:batch_max]
        else:
            due = sorted(filter(self._is_due, lane), key=lambda row: (row.available_at, row.seq))[:batch_max]
        taken, size = list[OutboxRow](), 0
        for row in due:
            own = row.bytes if row.bytes <= event_bytes_max else 0
            if taken and size + own > bytes_max:
                break
            taken.append(row)
            size += own
        if not taken:
            return NOTHING_CLAIMED
        owner, cut = self._owner(), len(taken) < len(due)
        return Claim(
            token=owner,
            at=self._now(),
            events=tuple(
                self._lease(row, owner, withheld=row.bytes > event_bytes_max)
                for row in sorted(taken, key=lambda row: row.seq)
            ),
            more=cut or len(taken) == batch_max,
            bytes=size,
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
        return dict.fromkeys(self._settle(claim, verdicts), self._now())

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
        leases = sum(row.state is EventState.CLAIMED for row in wrong)
        for row in wrong:
            if row.claimed_at is not None and row.claimed_at <= now:
                self._end_lease(row, now)
            else:
                row.state, row.claimed_at, row.claimed_by = EventState.PENDING, None, None
                row.available_at = min(row.available_at, now)
        return Reaped(leases, len(wrong) - leases)

    async def take_over(self, session: str) -> int:
        """End the leases of a session, of both lanes, unless its worker lives."""
        if session in self.table.held_sessions:
            return 0
        left = [
            row
            for row in self.table.rows.values()
            if row.claimed_by is not None and row.claimed_by.rpartition("#")[2][:-_CLAIM_DIGITS] == session
        ]
        for row in left:
            self._end_lease(row, now := self.table.clock())
            row.available_at = now if row.failures == 1 else row.available_at
        return len(left)

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.table.clock())

    def _is_wrong(self, row: OutboxRow, now: float) -> bool:
        if row.claimed_at is not None:
            return abs(now - row.claimed_at) > self.lease_seconds
        if row.state is not EventState.PENDING or row.available_at <= now:
            return False
        if row.error is None:
            return row.created_at > now and row.available_at <= row.created_at + _NOT_YET_SECONDS
        tried_ahead = row.first_attempt_at is not None and row.first_attempt_at > now
        return tried_ahead or row.available_at > now + self.delay_max_seconds()

    def _is_due(self, row: OutboxRow) -> bool:
        return row.state is EventState.PENDING and row.available_at <= self.table.clock()

    def _runs(self, lane: Iterable[OutboxRow], followed: Collection[str]) -> Iterator[OutboxRow]:
        """Give each key's events from its head on, up to one that is not due, or has failed before."""
        unfinished = [
            row
            for row in lane
            if row.state is not EventState.PUBLISHED and (row.error or row.claimed_by not in followed)
        ]
        unfinished.sort(key=lambda row: (row.ordering_key or "", row.seq))
        for _, rows in itertools.groupby(unfinished, key=lambda row: row.ordering_key):
            for row in rows:
                if row.state is EventState.DEAD and not self.hold_dead_keys:
                    continue
                if not self._is_due(row):
                    break
                yield row
                if row.error is not None:
                    break

    def _owner(self) -> str:
        owner = f"{self.worker}#{self.session}{next(self.table.claims):08x}"
        self._owners.add(owner)
        return owner

    def _hold(self, event_id: str) -> OutboxRow | None:
        """Claim an event unless it is claimed; return its row if the claim is this outbox's."""
        row = self.table.rows.get(event_id)
        if row and self._is_due(row):
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
        row.available_at = now + self.random() * min(2.0 ** min(row.failures, 6), _REAP_DELAY_MAX_SECONDS)
        row.claimed_at = row.claimed_by = None
