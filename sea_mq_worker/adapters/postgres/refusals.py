"""Find events whose claim PostgreSQL refuses, for example by a trigger; claims skip them."""

from collections.abc import Callable, Sequence

import asyncpg

from sea_mq_worker.adapters.postgres.claim_cursor import Position
from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import RowsRefusedError

_PASSED_OVER_SECONDS = 15.0
"""Time after which a claim of the event is retried: the trigger may have been fixed."""
_FOUND_MAX = 16
"""Cap on events found at once; the next claim finds the rest."""
_TRIAL = "trial"


class Refusals:
    """Finds and remembers the refused events of one lane.

    Args:
        pool: pool of the lane.
        run_max: maximum number of events of one key in a claim.
        clock: monotonic seconds.
    """

    def __init__(self, pool: asyncpg.Pool, *, run_max: int, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._run_max = run_max
        self._clock = clock
        self._sql = load_queries("refused")
        self._until: dict[str, float] = {}

    @property
    def passed_over(self) -> list[str]:
        """Ids that a claim must skip now."""
        now = self._clock()
        self._until = {id_: until for id_, until in self._until.items() if until > now}
        return list(self._until)

    async def find(
        self, fresh: Position, retries: Position, *, limit: int, keys: Sequence[str] | None
    ) -> list[tuple[str, RowsRefusedError]]:
        """Find the events that made a claim of up to ``limit`` events after these positions fail.

        ``keys``: the lane has ordering keys, and the claim also read these keys.
        """
        args = *fresh, *retries, limit, self.passed_over
        if keys is None:
            rows = await fetch(self._pool, self._sql["due"], *args)
        else:
            rows = await fetch(self._pool, self._sql["due_ordered"], *args, keys, self._run_max)
        left: list[Sequence[str]] = [[row["id"] for row in rows]]
        found: list[tuple[str, RowsRefusedError]] = []
        while left and len(found) < _FOUND_MAX:
            ids = left.pop(0)
            error = await self._refusal(ids)
            if error and len(ids) > 1:
                left += [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
            elif error:
                found.append((ids[0], error))
        until = self._clock() + _PASSED_OVER_SECONDS
        self._until |= {id_: until for id_, _ in found}
        return found

    async def _refusal(self, ids: Sequence[str]) -> RowsRefusedError | None:
        """Claim events, and roll the claim back."""
        try:
            with translated():
                async with self._pool.acquire() as connection:
                    trial = connection.transaction()
                    await trial.start()
                    try:
                        await connection.fetch(self._sql["try_claim"], ids, _TRIAL)
                        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # deferred triggers, too
                    finally:
                        await trial.rollback()
        except RowsRefusedError as error:
            return error
        return None
