"""PostgresInboxAdapter: a batch of messages in one round trip each way."""

import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any

import asyncpg

from sea_mq_worker.errors import StoreUnavailableError
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
from sea_mq_worker.postgres.pool import fetch, to_storable_text
from sea_mq_worker.postgres.queries import load_queries

_TOKENS_MAX = 100
"""Batches of leases that ``mark_processed`` and ``record_error`` remember."""


class PostgresInboxAdapter:
    """Leases, settles and dead-letters received messages; see ``ports.InboxRepository``.

    A token, new in every ``insert``, identifies a lease: a worker with the row's token may still settle the
    message after the lease expired, unless another worker has leased it. A batch whose answer was lost is
    inserted again under its token, so that it neither waits for its own lease nor counts twice.

    One schema belongs to one service. A message that two consumers deliver is one message: the row names the
    consumer that leased it last, and the message is handled once. Safe to use from several tasks.
    """

    def __init__(self, *, pool: asyncpg.Pool, worker: str, session: str = "") -> None:
        """Use a pool opened with ``WORKER_HINTS``.

        ``worker`` is shown to people and need not be unique. The end of ``session`` ends the leases, too;
        without one they end by their time alone.
        """
        self._pool = pool
        self._token_prefix = f"{worker}#{session}"
        self._tokens: deque[str] = deque(maxlen=_TOKENS_MAX)
        self._unanswered: dict[tuple[str, ...], str] = {}
        self._sql = load_queries("inbox")

    async def insert(self, msg: InboxMessage, *, lease_seconds: float = LEASE_SECONDS) -> Receipt:
        """Record and lease one message (CMD-051)."""
        [receipt] = await self.insert_batch([msg], lease_seconds=lease_seconds)
        return receipt

    async def mark_processed(self, id: str) -> bool:  # noqa: A002 - SDS-047's
        """Try the tokens of the latest leases: at most one of them fits."""
        return bool(await self.mark_processed_batch([Lease(str(id), token) for token in self._tokens]))

    async def record_error(self, id: str, error: str) -> bool:  # noqa: A002 - SDS-047's
        """As ``mark_processed``."""
        failed = GivenBack(error, counted=True)
        return bool(
            await self.record_error_batch([(Lease(str(id), token), failed) for token in self._tokens])
        )

    async def insert_batch(
        self, entries: Sequence[InboxMessage], *, lease_seconds: float
    ) -> Sequence[Receipt]:
        """Record and lease a batch (CMD-051); the primary key decides between workers (POL-047-003)."""
        receipts = await self._insert(deduplicate(entries), lease_seconds)
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
        """Read the index of unprocessed messages; a row written by hand may lack the stream position."""
        rows = await fetch(
            self._pool,
            self._sql["overdue"],
            *(stream, consumer, older_than_seconds, after or None, limit, lease_seconds),
        )
        return [InboxMessage(**row) for row in rows]

    async def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> frozenset[str]:
        """Let leases end ``lease_seconds`` from now."""
        return await self._write("extend", leases, lease_seconds)

    async def mark_processed_batch(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Set ``processed_at``, never before ``received_at`` (POL-047-004)."""
        return await self._write("mark_processed", leases)

    async def record_error_batch(self, failures: Sequence[tuple[Lease, GivenBack]]) -> frozenset[str]:
        """Record the error, cut to 2000 characters; attempts never fall below 0."""
        ordered = sorted(failures, key=lambda failure: failure[0].message_id)
        errors = [to_storable_text(outcome.error) for _, outcome in ordered]
        given_back = [int(not outcome.counted) for _, outcome in ordered]
        return await self._write("record_error", [lease for lease, _ in ordered], errors, given_back)

    async def begin_dead_letter(self, lease: Lease, *, reason: str, detail: str) -> frozenset[str]:
        """Record reason and time; the time of the earliest attempt stays."""
        rows = await fetch(
            self._pool,
            self._sql["begin_dead_letter"],
            lease.message_id,
            lease.token,
            reason,
            to_storable_text(detail),
        )
        return _ids(rows)

    async def mark_dead_lettered(self, leases: Sequence[Lease]) -> frozenset[str]:
        """Set ``dead_lettered_at`` where ``begin_dead_letter`` came before (CMD-052)."""
        return await self._write("mark_dead_lettered", leases)

    async def take_over(self, session: str) -> Sequence[AbandonedDelivery]:
        """End the leases in one statement, which keeps the session's worker out."""
        rows = await fetch(self._pool, self._sql["take_over"], session)
        return [AbandonedDelivery(**row) for row in rows]

    async def _insert(self, entries: Sequence[InboxMessage], lease_seconds: float) -> dict[str, Receipt]:
        if not entries:
            return {}
        ids, subjects, *others = zip(*entries, strict=True)
        token = self._unanswered.pop(ids, "") or f"{self._token_prefix}{secrets.token_hex(4)}"
        if token not in self._tokens:
            self._tokens.append(token)
        columns = ids, list(map(to_storable_text, subjects)), *others  # in the statement's order
        try:
            rows = await fetch(self._pool, self._sql["insert"], *columns, token, lease_seconds)
        except StoreUnavailableError:
            self._unanswered[ids] = token
            raise
        receipts: dict[str, Receipt] = dict.fromkeys(ids, LeasedElsewhere())
        for row in rows:
            message_id = row["message_id"]
            match row["verdict"]:
                case "run":
                    begun_ago = row["begun_seconds_ago"] or 0.0
                    receipts[message_id] = Lease(message_id, token, row["attempts"], begun_ago)
                case _ if isinstance(receipts[message_id], Lease):
                    pass  # leased by this statement, and known before it
                case "done":
                    receipts[message_id] = AlreadySettled(row["consumer"] or "")
                case "conflict":
                    receipts[message_id] = ContentConflict()
                case _:
                    receipts[message_id] = LeasedElsewhere(row["attempts"])
        return receipts

    async def _write(self, name: str, leases: Sequence[Lease], *more: object) -> frozenset[str]:
        """Run a statement over leases, in the order in which ``insert`` locks rows."""
        if not leases:
            return frozenset()
        ordered = sorted(leases, key=lambda lease: lease.message_id)
        ids = [lease.message_id for lease in ordered]
        tokens = [lease.token for lease in ordered]
        return _ids(await fetch(self._pool, self._sql[name], ids, tokens, *more))


async def resumed(pool: asyncpg.Pool, within_seconds: float) -> Sequence[tuple[str, float]]:
    """Return the event types that operators resumed within that time, and how many seconds ago.

    An empty type stands for all. ``sql/roles.sql`` grants the worker the few columns that it reads.
    """
    rows = await fetch(pool, load_queries("inbox")["resumed"], within_seconds)
    return [(row["event_type"], row["seconds_ago"]) for row in rows]


def _ids(rows: Sequence[Any]) -> frozenset[str]:
    return frozenset(row["message_id"] for row in rows)
