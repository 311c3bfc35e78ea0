"""In-memory fake of the sessions of workers."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.outbox.event import Share
from sea_mq_worker.ports import OtherSession


@dataclass(slots=True)
class SessionTable:
    """State shared by all workers of one database.

    Attributes:
        held: sessions whose workers have a connection; outbox and inbox of the database share the set.
    """

    held: set[str] = field(default_factory=set)
    rows: dict[tuple[str, str], str] = field(default_factory=dict)
    _changes: list[asyncio.Event] = field(default_factory=list)

    def begin(self, session: str, sides: Sequence[str], worker: str) -> None:
        """Begin the session of a worker, again where it lost all its connections."""
        self.held.add(session)
        self.rows |= {(session, side): worker for side in sides}
        for change in self._changes:
            change.set()

    def restart(self) -> None:
        """Lose what a server loses that is started again."""
        self.held.clear()
        self.rows.clear()

    def listen(self) -> asyncio.Event:
        """Return an event that is set whenever a session begins."""
        self._changes.append(asyncio.Event())
        return self._changes[-1]


class InMemorySessions:
    """A ``SessionTable`` as one worker sees it; see ``ports.WorkerSessions``."""

    def __init__(self, *, table: SessionTable, session: str, worker: str, sides: Sequence[str]) -> None:
        """Begin a session."""
        self._table = table
        self._session = session
        self._change = table.listen()
        table.begin(session, sides, worker)

    async def others(self) -> Sequence[OtherSession]:
        """Return the sessions of other workers."""
        if self._session not in self._table.held:
            raise StoreUnavailableError("the worker's session is interrupted")
        return [
            OtherSession(session, side, worker, session not in self._table.held)
            for (session, side), worker in self._table.rows.items()
            if session != self._session
        ]

    async def forget(self, session: OtherSession) -> None:
        """Remove a session that is gone."""
        if session.session not in self._table.held:
            self._table.rows.pop((session.session, session.side), None)

    async def wait_for_change(self, *, timeout_seconds: float) -> None:
        """Wait until a session begins."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._change.wait()
        self._change.clear()


# --- In-memory fake of the shares of the ordering keys.

_SILENT_SECONDS = 5.0


class InMemoryKeyShare:
    """One worker's share; see ``ports.KeyShare``.

    ``serving``: when each worker last said that it serves, which all workers share; ``clock``: theirs.
    """

    def __init__(self, serving: dict[str, float], worker: str, clock: Callable[[], float]) -> None:
        self._serving = serving
        self._worker = worker
        self._clock = clock

    async def take(self, *, serves: bool) -> Share:
        """Count this worker, or count it no more."""
        now = self._clock()
        self._serving.pop(self._worker, None)
        others = [name for name, at in self._serving.items() if now - at < _SILENT_SECONDS]
        if serves:
            self._serving[self._worker] = now
        return Share(sum(other < self._worker for other in others), len(others) + 1)

    async def leave(self) -> None:
        """Count this worker no more."""
        self._serving.pop(self._worker, None)


# --- Port Partitions in memory: which days of an outbox are made.


@dataclass(slots=True)
class InMemoryPartitions:
    """The days of an outbox in partitions; None: it is a single table."""

    today: Callable[[], date]
    days: set[date] | None = field(default_factory=set)

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Make the missing ones; see ``ports.Partitions``."""
        if self.days is None:
            return []
        wanted = [self.today() + timedelta(days=ahead) for ahead in range(days_ahead + 1)]
        missing = [day for day in wanted if day not in self.days]
        self.days.update(missing)
        return [f"outbox_events_{day:%Y%m%d}" for day in missing]
