"""Whether the worker can do its work now, and if not, why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sea_mq_worker.application.gate import Gate


@dataclass(slots=True)
class Readiness:
    """Collects reasons from everything that can be in the way; ready is: there is none."""

    _gates: list[Gate] = field(default_factory=list)
    _checks: dict[str, Callable[[], str]] = field(default_factory=dict)

    def watch(self, *gates: Gate) -> None:
        """A closed gate is a reason."""
        self._gates += gates

    def check(self, name: str, reason: Callable[[], str]) -> None:
        """Ask ``reason`` whenever readiness is asked for; empty: nothing in the way."""
        self._checks[name] = reason

    def reasons(self) -> Mapping[str, str]:
        """Return what is in the way, by name."""
        found = {name: reason() for name, reason in self._checks.items()}
        found |= {gate.name: gate.reason for gate in self._gates}
        return {name: reason for name, reason in found.items() if reason}
