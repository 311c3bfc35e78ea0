"""Everything around the loops of both sides, as the worker makes it, in virtual time."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

from sea_mq_worker.parts import Parts
from sea_mq_worker.settings import Settings
from sea_mq_worker.testing.events import RecordingEvents


class LoopWorld:
    """Clock, stop, events and settings of a loop; its delays are as long as they may be."""

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

    def parts(self) -> Parts:
        session = SimpleNamespace(id="", lost_since=lambda moment: self.session_lost_at >= moment)
        return Parts(
            settings=self.settings,
            name="w1",
            events=self.events,
            metrics=cast("Any", None),
            stop=self.stop,
            stack=AsyncExitStack(),
            clock=self.clock,
            random=lambda: 1.0,
            session=cast("Any", session),
        )
