"""One run: the faults that are active now, a worker's process from start to end, and what is noted."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sea_mq_worker.runtime.supervisor import ExitCode
from tests.simulation.plan import HANDLER_TROUBLES, Plan, Trouble

if TYPE_CHECKING:
    from tests.simulation.wires import SessionWire

SOMETIMES = (
    "duplicate answered by the stream",
    "fenced settlement",
    "thawed zombie sent nothing",
    "lease reaped",
    "late commit",
    "unknown commit",
    "late acknowledgement",
    "handler answered 409",
    "dead letter found again",
    "exhausted by attempts",
    "rescued after max_deliver",
    "gate closed",
    "gate opened",
    "released on stop",
    "claim followed another",
    "keys divided",
    "replay deferred",
    "doubtful event looked up",
    "redelivery acknowledged without the handler",
    "event type slowed",
    "event type resumed",
    "given back without an attempt",
    "read ahead",
    "content conflict",
    "fenced ending",
    "killed",
    "redriven",
    "session lost",
    "events taken over",
    "messages taken over",
)
"""Each of these must happen in a campaign, or the campaign has not looked where faults live."""


@dataclass(slots=True)
class Report:
    """Collects while a simulation runs; ``broken`` ends it early.

    Attributes:
        violations: broken invariants, each begins with its id.
        seen: how often each of SOMETIMES happened.
        trail: all that happened, in order.
    """

    violations: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    trail: list[str] = field(default_factory=list)
    broken: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, holds: object, invariant: str, text: str) -> None:
        """Note a violation unless ``holds``."""
        if not holds:
            self.violations.append(f"{invariant}: {text}")
            self.broken.set()

    def saw(self, what: str) -> None:
        """Note that one of SOMETIMES happened."""
        self.seen[what] += 1

    def tell(self, at: float, text: str) -> None:
        """Keep a line of what happened, for people and for comparing two runs."""
        self.trail.append(f"{at:8.3f} {text}")


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """A worker's process.

    Attributes:
        number: of this process, from 1; whoever is no worker has 0 or less.
        worker: which of the plan's workers it is; -1 for an operator's process.
        hurt: something outside kept it from finishing its work in order.
        frozen_at: when it was last made to stand still.
        clock: its monotonic clock.
        session: its session in the database, where workers take over from each other.
    """

    number: int
    worker: int
    name: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False
    hurt: bool = False
    frozen_at: float = -1.0
    code: ExitCode | None = None
    pulls: list[asyncio.Task[Any]] = field(default_factory=list)
    task: asyncio.Task[ExitCode] | None = None
    asked_to_wait: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    clock: Callable[[], float] = lambda: 0.0
    session: "SessionWire | None" = None


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
