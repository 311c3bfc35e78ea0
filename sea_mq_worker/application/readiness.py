"""Whether the worker can do its work now, and if not, why and for how long it may go on so."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.domain.errors import ContractError

_LOOK_SECONDS = 1.0

SLOW_TYPES = "slow event types"
"""The part whose reason names the event types that have a slow pace."""


@dataclass(slots=True)
class Readiness:
    """Collects reasons from everything that can be in the way; ready is: there is none."""

    _gates: list[CircuitBreaker] = field(default_factory=list)
    _checks: dict[str, Callable[[], str]] = field(default_factory=dict)
    _broken: dict[str, Callable[[], float]] = field(default_factory=dict)

    def watch(self, *breakers: CircuitBreaker) -> None:
        """A closed gate is a reason."""
        self._gates += breakers

    def check(
        self, name: str, reason: Callable[[], str], *, broken_seconds: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Ask ``reason`` whenever readiness is asked for; empty: nothing in the way.

        ``broken_seconds``: for how long somebody has had to mend it; 0: it may pass by itself.
        """
        self._checks[name] = reason
        self._broken[name] = broken_seconds

    def reasons(self) -> Mapping[str, str]:
        """Return what is in the way, by name."""
        found = {name: reason() for name, reason in self._checks.items()}
        found |= {breaker.name: breaker.reason for breaker in self._gates}
        return {name: reason for name, reason in found.items() if reason}

    async def give_up_after(self, seconds: float, stop: asyncio.Event) -> None:
        """Look until asked to stop.

        Raises:
            ContractError: somebody had so long to mend something, and it is as it was.
        """
        while not stop.is_set():
            broken = {name: ask() for name, ask in self._broken.items()}
            broken |= {breaker.name: breaker.broken_seconds for breaker in self._gates}
            for name in (name for name, so_long in broken.items() if so_long > seconds):
                reason = self.reasons().get(name, "")
                raise ContractError(f"{name}: {reason}; nobody has mended it for {seconds:g} s")
            await sleep_or_stop(stop, seconds=_LOOK_SECONDS)
