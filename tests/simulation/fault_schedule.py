"""The faults that are active now, by the troubles of the plan."""

import random
from collections.abc import Callable

from tests.simulation.life import Life
from tests.simulation.plan import HANDLER_TROUBLES, Plan, Trouble

_EVERYWHERE = frozenset({"store refuses", "broker down", "broker crashes", *HANDLER_TROUBLES})
_LATENCIES = (0.0, 0.0, 0.01, 0.02, 0.1, 0.3)


class FaultSchedule:
    """Decides the fate of each call; trouble that is not everywhere hits half of one worker's calls."""

    def __init__(self, plan: Plan, *, clock: Callable[[], float], dice: random.Random) -> None:
        self._workers = plan.workers
        self._clock = clock
        self._dice = dice
        self._troubles: dict[str, list[Trouble]] = {}
        for trouble in plan.troubles:
            self._troubles.setdefault(trouble.kind, []).append(trouble)

    def hits(self, kind: str, life: Life | None = None) -> bool:
        """Tell whether a call meets this trouble."""
        now = self._clock()
        for trouble in self._troubles.get(kind, ()):
            if trouble.at <= now < trouble.at + trouble.seconds:
                if kind in _EVERYWHERE:
                    return True
                if life is not None and trouble.worker % self._workers == life.worker:
                    return self.chance(0.5)
        return False

    @property
    def broker_is_down(self) -> bool:
        return self.hits("broker down") or self.hits("broker crashes")

    def handler_trouble(self) -> str:
        """Return what is wrong with the handler, if anything."""
        return next((kind for kind in HANDLER_TROUBLES if self.hits(kind)), "")

    def latency(self) -> float:
        return self._dice.choice(_LATENCIES)

    def chance(self, probability: float) -> bool:
        return self._dice.random() < probability

    def between(self, low: float, high: float) -> float:
        return self._dice.uniform(low, high)
