"""In-memory fake of the sessions of workers."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from sea_mq_worker.domain.errors import StoreUnavailableError
from sea_mq_worker.ports.sessions import OtherSession


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
    """A ``SessionTable`` as one worker sees it; see ``ports.sessions.WorkerSessions``."""

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
