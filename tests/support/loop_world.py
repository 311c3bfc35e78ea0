"""Everything around the loops of both sides, as bootstrap makes it, in virtual time."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

from sea_mq_worker.runtime.breaker import Backoff
from sea_mq_worker.settings import Settings
from sea_mq_worker.testing.events import RecordingEvents
from sea_mq_worker.wiring.context import WorkerContext

PROBE_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context(WorkerContext):
    """A context whose delays are as long as they may be."""

    session_lost_at: Callable[[], float]

    def session_lost_since(self, moment: float) -> bool:
        return self.session_lost_at() >= moment

    def backoff(self, *, base_seconds: float, cap_seconds: float) -> Backoff:
        return Backoff(base_seconds=base_seconds, cap_seconds=cap_seconds, random=lambda: 1.0)


class LoopWorld:
    """Clock, stop, events and settings of a loop."""

    def __init__(self, **settings: Any) -> None:
        self.clock = asyncio.get_running_loop().time
        self.stop = asyncio.Event()
        self.events = RecordingEvents()
        self.session_lost_at = -1.0
        self.settings = Settings(context="sea")
        self.change_settings(**settings)

    def change_settings(self, **settings: Any) -> None:
        """Set also what no worker takes: a test may want it shorter or longer."""
        self.settings = self.settings.model_copy(update=settings)

    def context(self) -> WorkerContext:
        return _Context(
            settings=self.settings,
            name="w1",
            events=self.events,
            metrics=cast("Any", None),
            stop=self.stop,
            stack=AsyncExitStack(),
            clock=self.clock,
            session_lost_at=lambda: self.session_lost_at,
        )
