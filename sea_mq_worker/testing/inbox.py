"""In-memory fake of the PostgreSQL inbox: the same leases, receipts and outcomes, on a given clock."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.inbox.message import (
    LEASE_SECONDS,
    AbandonedDelivery,
    AlreadySettled,
    ContentConflict,
    GivenBack,
    InboxMessage,
    Lease,
    LeasedElsewhere,
    Receipt,
    deduplicate,
    expand_duplicates,
)

_ERROR_CHARS_MAX = 2000
_TOKEN_DIGITS = 8
"""Digits of a lease in the token, behind those of the session."""


@dataclass(slots=True, kw_only=True)
class InboxRow:
    """One row; times are the clock's seconds, None where PostgreSQL has null."""

    entry: InboxMessage
    received_at: float
    content_hash: bytes | None
    attempts: int = 0
    last_error: str | None = None
    processed_at: float | None = None
    locked_until: float | None = None
    locked_by: str | None = None
    dead_letter_reason: str | None = None
    dead_letter_begun_at: float | None = None
    dead_lettered_at: float | None = None

    @property
    def settled(self) -> bool:
        return self.processed_at is not None or self.dead_lettered_at is not None

    def leased(self, now: float, lease_seconds: float) -> bool:
        """Return whether the row is leased: its lease ends neither in the past nor implausibly late."""
        return self.locked_until is not None and now < self.locked_until <= now + 2 * lease_seconds

    def unlock(self) -> None:
        """End the lease."""
        self.locked_until = self.locked_by = None


@dataclass(slots=True)
class InboxTable:
    """State shared by all adapters of one database."""

    clock: Callable[[], float]
    rows: dict[str, InboxRow] = field(default_factory=dict)
    tokens: Iterator[int] = field(default_factory=itertools.count)
    held_sessions: set[str] = field(default_factory=set)
    """Sessions of workers that live."""


@dataclass(kw_only=True, eq=False)
class InMemoryInbox:
    """An ``InboxTable`` as a worker sees it; see ``ports.InboxRepository``."""

    table: InboxTable
    worker: str
    session: str = ""
    _tokens: list[str] = field(default_factory=list)

    async def insert(self, msg: InboxMessage, *, lease_seconds: float = LEASE_SECONDS) -> Receipt:
        """Record and lease one message (CMD-051)."""
        [receipt] = await self.insert_batch([msg], lease_seconds=lease_seconds)
        return receipt

    async def mark_processed(self, id: str) -> bool:  # noqa: A002 - SDS-047's
        """Record the effect under the lease that this inbox holds."""
        return bool(await self.mark_processed_batch([Lease(str(id), token) for token in self._tokens]))

    async def record_error(self, id: str, error: str) -> bool:  # noqa: A002 - SDS-047's
        """Record an error under the lease that this inbox holds."""
        failed = GivenBack(error, counted=True)
        return bool(
            await self.record_error_batch([(Lease(str(id), token), failed) for token in self._tokens])
        )

    async def insert_batch(
        self, entries: Sequence[InboxMessage], *, lease_seconds: float
    ) -> Sequence[Receipt]:
        """Record and lease a batch (CMD-051)."""
        token = f"{self.worker}#{self.session}{next(self.table.tokens):08x}"
        self._tokens.append(token)
        receipts = {
            entry.message_id: self._insert_one(entry, token, lease_seconds) for entry in deduplicate(entries)
        }
        return expand_duplicates(entries, receipts)

    async def overdue(
        self,
        *,
        stream: str,
        consumer: str,
        older_than_seconds: float,
        lease_seconds: float,
        after: str,
        limit: int,
    ) -> Sequence[InboxMessage]:
        """Return unsettled messages without a lease; see ``ports.InboxRepository``."""
        now = self.table.clock()
        rows = sorted(self.table.rows.values(), key=_age)
        behind = _age(self.table.rows[after]) if after in self.table.rows else (0.0, "")
        found = [
            row.entry
            for row in rows
            if not row.settled
            and (row.entry.stream, row.entry.consumer) == (stream, consumer)
            and row.content_hash is not None
            and not row.leased(now, lease_seconds)
            and not now - older_than_seconds <= row.received_at <= now
            and _age(row) > behind
        ]
        return found[:limit]

    async def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> frozenset[str]:
        """Let leases end ``lease_seconds`` from now."""
        ends = self.table.clock() + lease_seconds
        held = list(self._held(leases))
        for row in held:
            row.locked_until = ends
        return _ids(held)

    async def mark_processed_batch(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Set ``processed_at``, never before ``received_at`` (POL-047-004)."""
        held = list(self._held(leases))
        for row in held:
            row.processed_at = max(self.table.clock(), row.received_at)
            row.last_error = None
            row.unlock()
        return _ids(held)

    async def record_error_batch(self, failures: Sequence[tuple[Lease, GivenBack]]) -> frozenset[str]:
        """Record the error; attempts never fall below 0."""
        changed = []
        for lease, outcome in failures:
            for row in self._held([lease]):
                row.last_error = outcome.error[:_ERROR_CHARS_MAX]
                row.attempts = max(0, row.attempts - (not outcome.counted))
                row.unlock()
                changed.append(row)
        return _ids(changed)

    async def begin_dead_letter(self, lease: Lease, *, reason: str, detail: str) -> frozenset[str]:
        """Record reason and time; the time of the earliest attempt stays."""
        held = list(self._held([lease]))
        for row in held:
            row.dead_letter_reason = reason
            row.last_error = f"{reason}: {detail}"[:_ERROR_CHARS_MAX]
            if row.dead_letter_begun_at is None:
                row.dead_letter_begun_at = self.table.clock()
        return _ids(held)

    async def mark_dead_lettered(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Set ``dead_lettered_at`` where ``begin_dead_letter`` came before (CMD-052)."""
        held = [row for row in self._held(leases) if row.dead_letter_begun_at is not None]
        for row in held:
            row.dead_lettered_at = self.table.clock()
            row.unlock()
        return _ids(held)

    async def take_over(self, session: str) -> Sequence[AbandonedDelivery]:
        """End the leases of a session, unless its worker lives."""
        if session in self.table.held_sessions:
            return []
        left = [
            row
            for row in self.table.rows.values()
            if row.locked_by is not None
            and not row.settled
            and row.locked_by.rpartition("#")[2][:-_TOKEN_DIGITS] == session
        ]
        for row in left:
            row.unlock()
        return [
            AbandonedDelivery(row.entry.stream, row.entry.consumer, row.entry.reply, row.attempts)
            for row in left
        ]

    def _insert_one(self, entry: InboxMessage, token: str, lease_seconds: float) -> Receipt:
        now = self.table.clock()
        content_hash = entry.content_hash or None
        fresh = InboxRow(entry=entry, received_at=now, content_hash=content_hash)
        row = self.table.rows.setdefault(entry.message_id, fresh)
        if content_hash and row.content_hash not in {None, content_hash}:
            return ContentConflict()
        if row.settled:
            return AlreadySettled(row.entry.consumer)
        if row.leased(now, lease_seconds):
            return LeasedElsewhere(row.attempts)
        row.entry, row.content_hash = entry, row.content_hash or content_hash
        row.attempts += 1
        row.locked_until, row.locked_by = now + lease_seconds, token
        begun_at = now if row.dead_letter_begun_at is None else row.dead_letter_begun_at
        return Lease(entry.message_id, token, row.attempts, now - begun_at)

    def _held(self, leases: Iterable[Lease]) -> Iterator[InboxRow]:
        for lease in leases:
            row = self.table.rows.get(lease.message_id)
            if row is not None and row.locked_by == lease.token and not row.settled:
                yield row


def _age(row: InboxRow) -> tuple[float, str]:
    return (row.received_at, row.entry.message_id)


def _ids(rows: Iterable[InboxRow]) -> frozenset[str]:
    return frozenset(row.entry.message_id for row in rows)
