"""The workers' sessions in the simulated database.

A worker is gone when it has no connection and none of its statements can still take effect: a statement that
waits for a lock keeps its connection, and so the lock of its worker's session, also after a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sea_mq_worker.ports import OtherSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.wires import Line

_SIDES = ("outbox", "inbox")
_NEVER = float("-inf")


class SessionWire:
    """The session of one worker over its line: ``WorkerSessions``, and what the worker asks of its own."""

    def __init__(self, line: Line) -> None:
        self.id = f"{line.life.number:08x}"
        self.is_connected = True
        self._line = line
        self.lost_at = _NEVER
        self._change = asyncio.Event()
        line.servers.sessions[self.id] = self
        self.begin()

    @property
    def is_gone(self) -> bool:
        """Whether no connection of the worker is left."""
        life = self._line.life
        lives = self.is_connected and not life.dead and life.code is None
        return not lives and not self._line.statements

    def begin(self) -> None:
        """Connect, again after a loss."""
        self.is_connected = True
        servers = self._line.servers
        servers.session_rows |= {(self.id, side): self._line.life.name for side in _SIDES}
        for session in servers.sessions.values():
            session._change.set()

    def cut(self, seconds: float) -> None:
        """Lose all connections for a while; the worker notices at once."""
        line = self._line
        line.servers.report.saw("session lost")
        line.tell(f"has no connection to the database for {seconds} s")
        self.is_connected, line.life.hurt = False, True
        self.lost_at = line.life.clock()
        line.later(seconds, self.begin)

    def lost_since(self, moment: float) -> bool:
        """Return whether others may have taken this worker for gone since ``moment``."""
        return self.lost_at >= moment

    async def others(self) -> Sequence[OtherSession]:
        """Look at the sessions of other workers.

        Raises:
            StoreUnavailableError: the statement did not run, or its answer is lost.
        """
        return await self._line.store("others", self._others)

    async def forget(self, session: OtherSession) -> None:
        """Remove the row of a session, unless its worker is there again.

        Raises:
            StoreUnavailableError: it may or may not be removed.
        """
        await self._line.store("forget", lambda: self._forget(session))

    async def wait_for_change(self, *, timeout_seconds: float) -> None:
        """Wait until a session begins."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._change.wait()
        self._change.clear()

    def _others(self) -> list[OtherSession]:
        servers = self._line.servers
        return [
            OtherSession(session, side, worker, servers.sessions[session].is_gone)
            for (session, side), worker in servers.session_rows.items()
            if session != self.id
        ]

    def _forget(self, session: OtherSession) -> None:
        if self._line.servers.sessions[session.session].is_gone:
            self._line.servers.session_rows.pop((session.session, session.side), None)
