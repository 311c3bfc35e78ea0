"""Readiness of the worker, and the reasons against it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.domain.errors import ContractError

_POLL_SECONDS = 1.0

SLOW_TYPES = "slow event types"
"""Name of the readiness check whose reason lists the slow event types."""


@dataclass(slots=True)
class Readiness:
    """Collects reasons from all circuits and checks; the worker is ready when there is none."""

    _breakers: list[CircuitBreaker] = field(default_factory=list)
    _checks: dict[str, Callable[[], str]] = field(default_factory=dict)
    _broken: dict[str, Callable[[], float]] = field(default_factory=dict)

    def watch(self, *breakers: CircuitBreaker) -> None:
        """Count an open circuit as a reason."""
        self._breakers += breakers

    def check(
        self, name: str, reason: Callable[[], str], *, broken_seconds: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Add a check; ``reason`` returns an empty text while the part is ready.

        ``broken_seconds`` returns for how long an operator has had to fix the part; 0: it may recover alone.
        """
        self._checks[name] = reason
        self._broken[name] = broken_seconds

    def reasons(self) -> Mapping[str, str]:
        """Return the reasons against readiness, by name of the part."""
        found = {name: reason() for name, reason in self._checks.items()}
        found |= {breaker.name: breaker.reason for breaker in self._breakers}
        return {name: reason for name, reason in found.items() if reason}

    async def give_up_after(self, seconds: float, stop: asyncio.Event) -> None:
        """Check until the worker stops.

        Raises:
            ContractError: a part that an operator must fix has been broken for longer than ``seconds``.
        """
        while not stop.is_set():
            broken = {name: measure() for name, measure in self._broken.items()}
            broken |= {breaker.name: breaker.broken_seconds for breaker in self._breakers}
            for name in (name for name, lasting in broken.items() if lasting > seconds):
                reason = self.reasons().get(name, "")
                raise ContractError(f"{name}: {reason}; it was not fixed within {seconds:g} s")
            await sleep_or_stop(stop, seconds=_POLL_SECONDS)
