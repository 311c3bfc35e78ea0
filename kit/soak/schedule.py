"""Which faults happen when: drawn from one seed before anything starts, so that a seed is a schedule."""

import random
from dataclasses import dataclass

WORKERS = ("w1", "w2", "w3")
MORTAL = ("w1", "w2")
"""The third is hurt in every way, but never ended, so that its use of memory tells something."""
SIDES = ("database", "broker", "handler")
CALM_SECONDS = 3.0
"""Before the first fault, so that there is something to hurt."""

_LANES = 2
_DELETIONS_END = 0.3
"""After this share of the time the consumer stays: its loss ends every worker."""
_REPLAYS_END_SECONDS = 25.0
"""No replay so shortly before the end: it waits until the stream's duplicate window is over."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: how often it is drawn, how long it lasts, and what nothing else may hurt meanwhile."""

    name: str
    weight: float
    shortest: float
    longest: float
    where: str
    """``worker``, ``proxy`` (of one worker), or the name of what all share."""


KINDS = (
    Kind("worker.kill", 6, 0.2, 2, "worker"),
    Kind("worker.freeze", 5, 4, 8, "worker"),
    Kind("worker.freeze_with_claims", 4, 4, 8, "worker"),
    Kind("worker.stop", 3, 0.2, 2, "worker"),
    Kind("broker.kill", 3, 0.2, 3, "broker"),
    Kind("broker.freeze", 2, 1, 6, "broker"),
    Kind("broker.full", 2, 2, 6, "broker"),
    Kind("broker.full_dead_letters", 1, 2, 6, "broker"),
    Kind("broker.forbid", 2, 2, 5, "broker"),
    Kind("broker.delete_consumer", 0.7, 1, 3, "broker"),
    Kind("database.restart", 3, 0.2, 2, "database"),
    Kind("database.freeze", 2, 1, 5, "database"),
    Kind("database.freeze_backend", 3, 1, 6, "database"),
    Kind("database.terminate", 2, 0.1, 0.5, "database"),
    Kind("proxy.stall", 4, 1, 8, "proxy"),
    Kind("proxy.cut", 3, 0.1, 0.5, "proxy"),
    Kind("proxy.refuse", 3, 1, 6, "proxy"),
    Kind("proxy.delay", 2, 2, 6, "proxy"),
    Kind("proxy.drop_to_server", 3, 1, 6, "proxy"),
    Kind("proxy.drop_to_client", 3, 1, 6, "proxy"),
    Kind("producer.cut", 2, 0.1, 0.5, "producer"),
    Kind("handler.fails", 2, 2, 6, "handler"),
    Kind("handler.hangs", 1.5, 2, 6, "handler"),
    Kind("handler.resets", 1.5, 2, 6, "handler"),
    Kind("handler.works_then_resets", 2, 2, 6, "handler"),
    Kind("handler.busy", 1, 2, 5, "handler"),
    Kind("handler.garbles", 1, 2, 5, "handler"),
    Kind("operator.replay", 1.5, 1, 2, "operator"),
    Kind("operator.redrive", 1.5, 1, 2, "operator"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: seconds after the start, its kind and victim, how long it lasts."""

    at: float
    kind: str
    victim: str
    seconds: float
    draw: int
    """A number for whatever else has to be chosen."""

    @property
    def end(self) -> float:
        return self.at + self.seconds


def draw(seed: int, seconds: float, *, only: frozenset[str] = frozenset()) -> list[Fault]:
    """Draw two lanes of faults with short rests in between; every kind comes once before chance decides.

    Args:
        seed: the same seed, the same plan.
        seconds: how long traffic runs.
        only: these kinds alone.
    """
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS if not only or kind.name in only]
    untried = list(kinds)
    chance.shuffle(untried)
    lanes = [CALM_SECONDS] * _LANES
    planned: list[Fault] = []
    while (at := min(lanes)) < seconds - 1:
        lane = lanes.index(at)
        kind = chance.choice(untried) if untried else chance.choices(kinds, [k.weight for k in kinds])[0]
        fault = _fault(chance, kind, at, seconds)
        if fault is None and kind in untried:
            untried.remove(kind)
        if fault is None or any(_collide(fault, other) for other in planned):
            lanes[lane] = at + 0.1
            continue
        planned.append(fault)
        lanes[lane] = fault.end + chance.uniform(0.2, 1.2)
        if kind in untried:
            untried.remove(kind)
    return sorted(planned, key=lambda fault: fault.at)


def _fault(chance: random.Random, kind: Kind, at: float, end: float) -> Fault | None:
    length = min(chance.uniform(kind.shortest, kind.longest), end - at)
    victim = kind.where
    if kind.where == "worker":
        victim = chance.choice(WORKERS if "freeze" in kind.name else MORTAL)
    elif kind.where == "proxy":
        victim = f"{chance.choice(WORKERS)}:{chance.choice(SIDES)}"
    if kind.name == "broker.delete_consumer" and at > CALM_SECONDS + end * _DELETIONS_END:
        return None
    if kind.name == "operator.replay" and at > end - _REPLAYS_END_SECONDS:
        return None
    return Fault(round(at, 2), kind.name, victim, round(length, 2), chance.getrandbits(32))


def _collide(one: Fault, other: Fault) -> bool:
    """Nothing is hurt in two ways at once, or again before it has come to itself."""
    if one.at > other.end + 0.5 or other.at > one.end + 0.5:
        return False
    return one.victim.split(":")[0] == other.victim.split(":")[0]
