"""Rows that the worker's periodic checks read and write; all raise what ``translated`` raises."""

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.handler_conflicts import HandledDurable
from sea_mq_worker.domain.missed_messages import ConsumerStanding, MissedMessages, RecordedMissed
from sea_mq_worker.domain.stored_messages import PublishedRow

_PAGES = 200
_SOME = 3
_SEEN_SECONDS = 150.0
"""A worker that has not repeated its record for this time has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Stream sequences of the PUBLISHED rows that were read.

    Attributes:
        greatest: the greatest sequence in a row; 0: there is none.
        shared: number of rows whose sequence is also in another row.
        some: a few rows.
    """

    greatest: int = 0
    shared: int = 0
    some: Sequence[PublishedRow] = ()


async def acknowledged(pool: asyncpg.Pool, stream: str) -> Acknowledged:
    """Read the latest rows and some others."""
    sql = load_queries("published_positions")["acknowledged"]
    [row] = await fetch(pool, sql, stream, _PAGES, _SOME)
    some = tuple(
        PublishedRow(event_id, int(seq), datetime.fromtimestamp(float(at), UTC))
        for event_id, seq, at in (one.split() for one in row["some"])
    )
    return Acknowledged(greatest=row["greatest"] or 0, shared=row["shared"], some=some)


class PostgresStandings:
    """Keeps the last check of each consumer over restarts; only one of several workers reports a finding."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("standings")

    async def last(self, stream: str, durable: str) -> ConsumerStanding | None:
        """Return a consumer's progress at the last check, or None before the first check."""
        rows = await fetch(self._pool, self._sql["standing"], stream, durable)
        return ConsumerStanding(**json.loads(rows[0]["standing"])) if rows else None

    async def replace(
        self,
        stream: str,
        durable: str,
        *,
        last: ConsumerStanding | None,
        now: ConsumerStanding,
        found: MissedMessages | None,
    ) -> bool:
        """Replace the last check; False: another worker has already done so."""
        first_seq, last_seq, count = astuple(found) if found else (None, None, 0)
        rows = await fetch(
            self._pool,
            self._sql["replace"],
            *(stream, durable, json.dumps(asdict(last)) if last else None, json.dumps(asdict(now))),
            *(count, first_seq, last_seq),
        )
        return bool(rows)

    async def recorded(self, ids: Sequence[str]) -> set[str]:
        """Return those of the message ids that the inbox has."""
        return {row["message_id"] for row in await fetch(self._pool, self._sql["recorded"], ids)}

    async def missed(self) -> Sequence[RecordedMissed]:
        """Return the missed messages that no operator has acknowledged."""
        return [RecordedMissed(**row) for row in await fetch(self._pool, self._sql["missed"])]


class PostgresHandledDurables:
    """Records which durables are consumed with these tables, and for which handlers."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("consumers")

    async def others(self, handler: str) -> Sequence[HandledDurable]:
        """Return the durables that workers with another handler have consumed lately."""
        rows = await fetch(self._pool, self._sql["others"], handler, _SEEN_SECONDS)
        return [HandledDurable(**dict(row) | {"subjects": tuple(row["subjects"])}) for row in rows]

    async def record(self, own: Sequence[HandledDurable]) -> None:
        """Record durables for the next ``_SEEN_SECONDS``."""
        for one in own:
            await fetch(
                self._pool, self._sql["record"], one.stream, one.durable, one.handler, list(one.subjects)
            )

    async def remove(self, own: Sequence[HandledDurable]) -> None:
        """Remove the records; another worker that consumes the same durables soon writes them again."""
        consumed = zip(*((one.stream, one.durable, one.handler) for one in own), strict=True)
        await fetch(self._pool, self._sql["remove"], *consumed)
