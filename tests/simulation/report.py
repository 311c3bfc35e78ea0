"""The result of a simulation: broken invariants, and events that happened at least once."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

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
