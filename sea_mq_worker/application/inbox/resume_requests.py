"""Operators' requests to resume slow event types; queried only while an event type is slow."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sea_mq_worker.application.inbox.handler_health import HandlerHealth
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.domain.errors import ContractError, UnavailableError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.ports.inbox import Resumptions
from sea_mq_worker.ports.observer import Observer


@dataclass(slots=True, kw_only=True)
class ResumeRequests:
    """Ends the slow pace of an event type at an operator's request, in every worker."""

    resumptions: Resumptions
    health: HandlerHealth
    observer: Observer
    seconds: float
    _forbidden: bool = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops."""
        while not stop.is_set():
            await sleep_or_stop(stop, seconds=self.seconds)
            slow = self.health.slow_seconds()
            if slow and not self._forbidden:
                for event_type, seconds_ago in await self._requests(max(slow.values())):
                    self._resume(event_type, seconds_ago, slow)

    async def _requests(self, within_seconds: float) -> Sequence[tuple[str, float]]:
        try:
            return await self.resumptions.resumed(within_seconds=math.ceil(within_seconds))
        except UnavailableError:
            return ()
        except ContractError as error:  # a worker without the right to read the audit still works
            self._forbidden = True
            text = f"`inbox resume` does not reach this worker: run sql/roles.sql again ({error})"
            self.observer.observe(Noticed(event="resume_not_readable", text=text))
            return ()

    def _resume(self, event_type: str, seconds_ago: float, slow: dict[str, float]) -> None:
        """Resume the type, or all for an empty one, if it was slow when the operator requested it."""
        for name, seconds in slow.items():
            if event_type in {"", name} and seconds_ago < seconds:
                self.health.resume(name)
