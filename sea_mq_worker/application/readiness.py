"""Readiness of the worker, and the reasons against it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.domain.errors import ContractError

_POLL_SECONDS = 1.0


@dataclass(slots=True)
class Readiness:
    """Collects reasons from all circuits and checks; the worker is ready when there is none."""

    _checks: dict[str, Callable[[], str]] = field(default_factory=dict)
    _broken: dict[str, Callable[[], float]] = field(default_factory=dict)
    _warnings: Callable[[], Mapping[str, str]] = dict

    def watch(self, breaker: CircuitBreaker) -> None:
        """Count an open circuit as a reason."""
        self.check(breaker.name, lambda: breaker.reason, broken_seconds=lambda: breaker.broken_seconds)

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
        return {name: text for name, reason in self._checks.items() if (text := reason())}

    def warn(self, warnings: Callable[[], Mapping[str, str]]) -> None:
        """Set the source of warnings: troubles, by name, in spite of which the worker is ready."""
        self._warnings = warnings

    def warnings(self) -> Mapping[str, str]:
        return self._warnings()

    async def give_up_after(self, seconds: float, stop: asyncio.Event) -> None:
        """Check until the worker stops.

        Raises:
            ContractError: a part that an operator must fix has been broken for longer than ``seconds``.
        """
        while not stop.is_set():
            for name, measure in self._broken.items():
                if measure() > seconds:
                    reason = self._checks[name]()
                    raise ContractError(f"{name}: {reason}; it was not fixed within {seconds:g} s")
            await sleep_or_stop(stop, seconds=_POLL_SECONDS)
