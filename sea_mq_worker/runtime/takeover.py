"""Takeover: ends the leases of workers that have ended, long before the leases do by themselves."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sea_mq_worker.errors import DependencyError, RowsRefusedError
from sea_mq_worker.ports import Events, OtherSession, WorkerSessions
from sea_mq_worker.runtime.row_isolation import report_refused
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop, sleep_or_stop

_POLL_SECONDS = 1.0
"""Interval between two checks of the sessions of other workers."""
_CONFIRM_SECONDS = 0.4
"""Time for a running worker that lost all its connections to connect again."""
_ALONE_SECONDS = 30.0
"""Longest wait of a worker that sees no other one; a session that begins ends the wait."""

EndLeases = Callable[[str], Awaitable[int]]
"""Ends the leases of a session on one side, and returns their number."""


@dataclass(slots=True, kw_only=True)
class Takeover:
    """Checks the sessions of other workers, and takes over from those that two checks in a row find ended."""

    sessions: WorkerSessions
    events: Events
    sides: dict[str, EndLeases] = field(default_factory=dict)
    """A side that this worker does not have is left to others."""
    _suspected: frozenset[OtherSession] = frozenset()

    async def run(self, stop: asyncio.Event) -> None:
        """Check until the worker stops."""
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                try:
                    others = await self.check()
                except DependencyError:
                    self._suspected = frozenset()
                    others = True
                if self._suspected:
                    await sleep_or_stop(stop, seconds=_CONFIRM_SECONDS)
                elif others:
                    await sleep_or_stop(stop, seconds=_POLL_SECONDS)
                else:
                    wait = self.sessions.wait_for_change(timeout_seconds=_ALONE_SECONDS)
                    await cancel_on_stop(stop, wait)

    async def check(self) -> bool:
        """Take over from sessions that the last check found ended, too; return whether others are left.

        StoreUnavailableError: the own session was interrupted, and again two checks in a row are needed.
        """
        others = [one for one in await self.sessions.others() if one.side in self.sides]
        gone = {one for one in others if one.is_gone}
        confirmed = gone & self._suspected
        self._suspected = frozenset(gone - confirmed)
        for session in sorted(confirmed):
            try:
                count = await self.sides[session.side](session.session)
            except RowsRefusedError as error:  # these leases end by their time, each by itself
                report_refused(self.events, f"{session.side} of worker {session.worker}", error)
                count = 0
            await self.sessions.forget(session)
            if count:
                self.events.emit("worker_taken_over", worker=session.worker, side=session.side, count=count)
        return len(others) > len(confirmed)
