"""A gate before a dependency: closed while it is away, probed by one caller at a time.

The circuit breaker of this worker. While closed nobody passes but a probe, each time after a longer wait;
the probe's success opens it for all. That is how an outage spends no event's or message's life.
"""

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum

from sea_mq_worker.application.waiting import StoppedError, cancel_on_stop
from sea_mq_worker.domain.errors import ContractError, DependencyError
from sea_mq_worker.domain.facts import CircuitClosed, CircuitOpened
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.ports.observer import Observer

_PROBE_GROWTH = 8
_PROBE_GROWTHS_MAX = 4


_TURN_SECONDS = 0.05
"""How soon a caller looks again whether the one before it, whose turn it was, is gone."""


class Permit(Enum):
    """How a caller was let through."""

    FREE = "free"
    PROBE = "probe"
    STOPPED = "stopped"


class CircuitBreaker:
    """One per dependency; all its methods belong to one event loop.

    Args:
        name: what is behind it, for facts and readiness.
        backoff: how long it stays closed before each probe.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, name: str, backoff: Backoff, observer: Observer, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self._backoff = backoff
        self._observer = observer
        self._clock = clock
        self._reason = ""
        self._failures = 0
        self._opened_at = 0.0
        self._contract_broken_at: float | None = None
        self._retry_at = 0.0
        self._probing = False
        self._rejected_probes = 0
        self._queue: dict[object, None] = {}
        self._changed = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why it is closed; empty while it is open."""
        return self._reason

    @property
    def is_closed(self) -> bool:
        return not self._reason

    @property
    def broken_seconds(self) -> float:
        """For how long it is closed by what somebody has to mend; 0 otherwise."""
        return 0.0 if self._contract_broken_at is None else self._clock() - self._contract_broken_at

    @property
    def probe_batch_max(self) -> int:
        """How much a probe may try: one thing, but more after each time that all it tried was refused.

        So what the dependency does take is found behind what it refuses.
        """
        return int(_PROBE_GROWTH ** min(self._rejected_probes, _PROBE_GROWTHS_MAX))

    async def enter(self, stop: asyncio.Event) -> Permit:
        """Wait while closed, unless asked to stop; an open gate lets through all the same.

        A caller let through as the probe must answer with pause, resume or skip. Callers probe in the order
        in which they came, so that one with nothing but bad news does not keep the others from their turn.
        """
        if self.is_closed:
            return Permit.FREE
        place = object()
        self._queue[place] = None
        try:
            return await self._wait_turn(place, stop)
        finally:
            del self._queue[place]

    async def wait_for_probe(self, *, unless: asyncio.Event) -> None:
        """Wait until a probe has ended, well or badly, or until ``unless`` happens."""
        await self._wait_changed(unless, None)

    def record_failure(self, reason: str, *, answered: bool = False, broken: bool = False) -> None:
        """The dependency does not work: close, or stay closed for longer after a failed probe.

        ``answered``: it can be reached, but refuses what was asked of it. ``broken``: it does so until
        somebody mends it.
        """
        if self.is_closed:
            self._opened_at = self._clock()
            self._failures = self._rejected_probes = 0
        elif not self._probing:
            return
        self._failures += 1
        if not broken:
            self._contract_broken_at = None
        elif self._contract_broken_at is None:
            self._contract_broken_at = self._clock()
        self._rejected_probes = self._rejected_probes + 1 if answered else 0
        delay = self._backoff.delay_seconds(self._failures)
        if reason != self._reason:
            self._observer.observe(CircuitOpened(circuit=self.name, reason=reason, retry_seconds=delay))
        self._reason = reason
        self._schedule(delay)

    def record_exception(self, error: DependencyError) -> None:
        """Close for what a call has raised."""
        self.record_failure(str(error), broken=isinstance(error, ContractError))

    def release(self) -> None:
        """The probe found nothing to try: let another try after the same wait."""
        if self._probing:
            self._schedule(self._backoff.delay_seconds(max(self._failures, 1)))

    def record_success(self) -> None:
        """The dependency works: open."""
        if self.is_closed:
            return
        paused = self._clock() - self._opened_at
        self._reason, self._contract_broken_at = "", None
        self._observer.observe(CircuitClosed(circuit=self.name, paused_seconds=paused))
        self._schedule(0.0)

    def _schedule(self, delay: float) -> None:
        self._probing = False
        self._retry_at = self._clock() + delay
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_turn(self, place: object, stop: asyncio.Event) -> Permit:
        while not self.is_closed:
            if stop.is_set():
                return Permit.STOPPED
            remaining = self._retry_at - self._clock()
            first = next(iter(self._queue)) is place
            if first and not self._probing and remaining <= 0:
                self._probing = True
                return Permit.PROBE
            wait = max(remaining, 0.0 if first else _TURN_SECONDS)
            await self._wait_changed(stop, None if self._probing else wait)
        return Permit.FREE

    async def _wait_changed(self, stop: asyncio.Event, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError, StoppedError):
            async with asyncio.timeout(seconds):
                await cancel_on_stop(stop, self._changed.wait())
