"""PostgresKeyShare: workers divide the events with ordering keys by a hash of the key.

Each worker that serves them says so about once a second in ``sea_mq_shares``. The workers in that table have
an order, so each knows the keys that are its own::

    worker    said so      place   keys
    05ce      0.2 s ago    0 of 2  those whose hash is even
    3f1a      1.0 s ago    1 of 2  those whose hash is odd
    9b77      6.0 s ago            it hangs, or was killed: it does not count

While two workers have read the table at different times, both may claim events of a key, or neither: the next
look ends that. An event that both want goes to one, and keeps its place in its key.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg

from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.outbox.event import WHOLE, Share
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries

_SQL = load_queries("sessions")
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 5.0
"""Longer than an idle worker waits between two looks."""


@dataclass(kw_only=True, eq=False, repr=False)
class PostgresKeyShare:
    """The share of one worker; see ``ports.KeyShare``.

    Attributes:
        worker: ID of the worker's session, or another one that no other worker has.
        silent_seconds: a worker that has said nothing for so long does not count.
        clock: monotonic seconds.
    """

    pool: asyncpg.Pool
    worker: str
    silent_seconds: float = _SILENT_SECONDS
    clock: Callable[[], float] = time.monotonic
    _share: Share = field(default=WHOLE, init=False)
    _serves: bool | None = field(default=None, init=False)
    _look_at: float = field(default=float("-inf"), init=False)

    async def take(self, *, serves: bool) -> Share:
        """Look at the table about once a second; after an error the share stays as it was."""
        if serves != self._serves or self.clock() >= self._look_at:
            self._look_at = self.clock() + _LOOK_SECONDS
            with contextlib.suppress(StoreUnavailableError, ContractError):
                await self._say(serves=serves)
        return self._share

    async def leave(self) -> None:
        """Say that this worker serves no keys; if that fails, it soon counts as silent."""
        if self._serves:
            with contextlib.suppress(StoreUnavailableError, ContractError):
                await self._say(serves=False)

    async def _say(self, *, serves: bool) -> None:
        [row] = await fetch(self.pool, _SQL["share"], self.worker, serves, self.silent_seconds)
        self._serves, self._share = serves, Share(row["place"], row["workers"])
