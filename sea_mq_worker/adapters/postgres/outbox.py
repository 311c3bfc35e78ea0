"""PostgresOutboxAdapter: one lane of the outbox, in two round trips a batch."""

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, assert_never

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.cursor import START, Cursor, Read
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.events import Claim, ClaimedEvent
from sea_mq_worker.domain.outcomes import Buried, Postponed, Published, Released

_REFUSALS_MAX = 20
_REFUSAL_SECONDS = 0.005
_REAP_MAX = 500


class PostgresOutboxAdapter:
    """Leases, settles and reaps the events of one lane; see ``ports.outbox.OutboxRepository``.

    One adapter claims the events that have an ordering key, another those that have none; either one reaps
    both. Safe to use from several tasks.
    """

    def __init__(
        self,
        *,
        pool: asyncpg.Pool,
        worker: str,
        lease_seconds: float,
        ordered: bool,
        hold_dead_keys: bool,
        failures_max: int,
        run_max: int = 100,
        take_turns: bool = True,
    ) -> None:
        """Serve a lane; nothing is asked of the database yet.

        Args:
            pool: opened with ``WORKER_HINTS``.
            worker: who claims; for people, the fence does not depend on its being unique.
            lease_seconds: how long a claim keeps others away, by the database's clock.
            ordered: serve the events with an ordering key instead of those without.
            hold_dead_keys: a dead event holds the later events of its key.
            failures_max: leases that run out and make an event dead, its failed attempts included.
            run_max: most events of one key in a claim.
            take_turns: claims of several relays in the ordered lane avoid each other.
        """
        self._pool = pool
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._ordered = ordered
        self._hold_dead_keys = hold_dead_keys
        self._failures_max = failures_max
        self._run_max = run_max
        self._take_turns = take_turns
        self._sql = load_queries(
            "outbox", "claim", "claim_ordered", "mark_published", "settle", "reap", "reap_ordered"
        )
        self._fresh = Cursor()
        self._retries = Cursor()
        self._retries_first = False
        self._hints: set[str] = set()

    async def find_unpublished(self, *, batch_max: int) -> Claim:
        """Lease due events; neither retries nor first tries can take all places of a full batch."""
        return await (self._claim_ordered if self._ordered else self._claim)(batch_max)

    async def mark_published(self, claim: Claim, verdicts: Sequence[Published]) -> frozenset[str]:
        """CLAIMED -> PUBLISHED (CMD-050); the attempt was counted by the claim."""
        return await self._settle("mark_published", claim, map(_published, verdicts))

    async def increment_attempts(
        self, claim: Claim, verdicts: Sequence[Postponed | Buried]
    ) -> frozenset[str]:
        """CLAIMED -> PENDING or DEAD, with the error; errors are cut to 2000 characters."""
        return await self._settle("settle", claim, map(_changes, verdicts))

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        """CLAIMED -> PENDING, as if the claim had not been, but for its count."""
        released = await self._settle("settle", claim, map(_changes, verdicts))
        if verdicts and not self._ordered:
            self._fresh.rewind()
            self._retries.rewind()
        return released

    async def reap(self) -> int:
        """End up to 500 leases of each lane that ran out; what is left over waits for the next call."""
        limits = self._lease_seconds, _REAP_MAX, self._failures_max
        unordered = await fetch(self._pool, self._sql["reap"], *limits)
        ordered = await fetch(self._pool, self._sql["reap_ordered"], *limits)
        if self._ordered:
            self._hints.update(row["ordering_key"] for row in ordered)
        return len(unordered) + len(ordered)

    async def _claim(self, batch_max: int) -> Claim:
        owner = self._owner()
        began = time.monotonic()
        positions = *self._fresh.next(), *self._retries.next()
        kept = self._places_kept(batch_max)
        rows = await fetch(self._pool, self._sql["claim"], batch_max, owner, *positions, kept)
        seconds = time.monotonic() - began
        claimed = [row for row in rows if row["id"] is not None]
        full = len(claimed) == batch_max
        for cursor, retried in ((self._fresh, False), (self._retries, True)):
            places = [(row["available_at"], row["seq"]) for row in claimed if row["retried"] is retried]
            read = Read(max(places, default=START), now=rows[0]["at"], full=full, fruitful=bool(claimed))
            cursor.advance(read, seconds=seconds)
        return _claim_of(owner, claimed, more=full)

    async def _claim_ordered(self, batch_max: int) -> Claim:
        owner = self._owner()
        window = 2 * batch_max
        hints, self._hints = self._hints, set()
        began = time.monotonic()
        positions = *self._fresh.next(), *self._retries.next()
        kept = self._places_kept(batch_max)
        try:
            rows = await self._take_turn(
                batch_max, owner, *positions, kept, window, self._run_max, list(hints)
            )
        except BaseException:
            self._hints |= hints
            raise
        seconds = time.monotonic() - began
        head = rows[0]
        self._hints.update(head["leftover"])
        claimed = [row for row in rows if row["id"] is not None]
        cut = len(claimed) == batch_max
        fresh_full = head["fresh_count"] == window
        retries_full = head["retry_count"] == (kept if fresh_full else batch_max)
        for cursor, name, full in (
            (self._fresh, "fresh", fresh_full),
            (self._retries, "retry", retries_full),
        ):
            position = START if head[f"{name}_at"] is None else (head[f"{name}_at"], head[f"{name}_seq"])
            read = Read(position, now=head["at"], full=full or cut, fruitful=bool(claimed))
            cursor.advance(read, seconds=seconds)
        return _claim_of(owner, claimed, more=cut or fresh_full or (retries_full and kept > 0))

    def _places_kept(self, batch_max: int) -> int:
        """Keep a quarter of the places for retries; of a batch too small to divide, every other one."""
        self._retries_first = not self._retries_first
        return batch_max // 4 or int(self._retries_first)

    async def _take_turn(self, *args: object) -> Sequence[Any]:
        """Claim in turn with other relays; after a bounded number of refusals, out of turn.

        Two claims at once are correct, but the second one walks over what the first has locked.
        """
        statement = self._sql["claim_ordered"]
        for _ in range(_REFUSALS_MAX if self._take_turns else 0):
            rows = await fetch(self._pool, statement, *args, True, self._hold_dead_keys)
            if rows[0]["my_turn"]:
                return rows
            await asyncio.sleep(_REFUSAL_SECONDS)
        return await fetch(self._pool, statement, *args, False, self._hold_dead_keys)

    async def _settle(
        self, statement: str, claim: Claim, changes: Iterable[tuple[object, ...]]
    ) -> frozenset[str]:
        """Run a statement that takes a claim and a list for each column of ``changes``."""
        columns = list(map(list, zip(*changes, strict=True)))
        if not columns:
            return frozenset()
        claimed_at, owner = claim.token.split(" ", 1)
        rows = await fetch(
            self._pool, self._sql[statement], owner, datetime.fromisoformat(claimed_at), *columns
        )
        if self._ordered:
            self._hints.update(row["ordering_key"] for row in rows)
        return frozenset(row["id"] for row in rows)

    def _owner(self) -> str:
        """Name one claim: two claims of one worker in the same microsecond stay apart."""
        return f"{self._worker}#{secrets.token_hex(4)}"


def _claim_of(owner: str, rows: Sequence[Any], *, more: bool) -> Claim:
    if not rows:
        return Claim(token="", events=(), more=more)
    events = sorted(map(_event, rows), key=lambda event: event.seq)
    return Claim(token=f"{rows[0]['claimed_at'].isoformat()} {owner}", events=tuple(events), more=more)


def _event(row: Any) -> ClaimedEvent:
    return ClaimedEvent(
        id=row["id"],
        seq=row["seq"],
        aggregate_type=row["aggregate_type"],
        aggregate_id=row["aggregate_id"],
        event_type=row["event_type"],
        event_version=row["event_version"],
        payload=row["payload"].encode(),
        occurred_at=row["occurred_at"],
        correlation_id=row["correlation_id"] or "",
        causation_id=row["causation_id"] or "",
        partition_key=row["partition_key"] or "",
        ordering_key=row["ordering_key"],
        headers=row["headers"] or "",
        metadata=row["metadata"] or "",
        attempts=row["publish_attempts"],
        failures=row["failures"],
        age_seconds=max(0.0, row["age_seconds"]),
        attempted_seconds_ago=max(0.0, row["attempted_seconds_ago"]),
        earlier_stream_seq=row["stream_seq"] or 0,
    )


def _published(verdict: Published) -> tuple[object, ...]:
    """Return id, stream and sequence as ``mark_published`` takes them."""
    return verdict.event.id, verdict.stored.stream, verdict.stored.seq


def _changes(verdict: Postponed | Buried | Released) -> tuple[object, ...]:
    """Return id, state, error, failures to add and delay as ``settle`` takes them."""
    match verdict:
        case Postponed(event, error, delay_seconds, failed):
            return event.id, "PENDING", error, int(failed), delay_seconds
        case Buried(event, error):
            return event.id, "DEAD", error, 1, None
        case Released(event):
            return event.id, "PENDING", None, 0, None
        case _:
            assert_never(verdict)
