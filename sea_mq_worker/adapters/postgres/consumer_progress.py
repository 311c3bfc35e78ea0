"""How far each consumer was at the last look, whichever worker took it."""

import json
from dataclasses import asdict, astuple

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.missed_messages import ConsumerStanding, MissedMessages


class PostgresStandings:
    """Remembers looks over restarts, and lets one of several workers report a finding.

    Raises, of both methods:
        StoreUnavailableError: PostgreSQL cannot serve now.
        ContractError: a privilege is missing.
    """

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("standings", "standing", "look")

    async def last(self, stream: str, durable: str) -> ConsumerStanding | None:
        """Return the last look at a consumer, or None before the first."""
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
        """Put a look in the place of the last one; False: another worker was faster."""
        first_seq, last_seq, count = astuple(found) if found else (None, None, 0)
        rows = await fetch(
            self._pool,
            self._sql["look"],
            stream,
            durable,
            json.dumps(asdict(last)) if last else None,
            json.dumps(asdict(now)),
            count,
            first_seq,
            last_seq,
        )
        return bool(rows)
