"""The plan of faults, drawn from a seed before the start, so that a seed repeats a plan."""

import random
from dataclasses import dataclass

WORKERS = ("w1", "w2", "w3")
MORTAL = ("w1", "w2")
"""Workers that faults may end. The third never ends, so that its memory can be measured over time."""
SIDES = ("database", "broker", "handler")
CALM_SECONDS = 3.0
"""Time before the first fault, so that work is in progress."""

_LANES = 2
_DELETIONS_END = 0.3
"""Share of the time in which the consumer may be deleted, since its loss ends every worker."""
_REPLAYS_END_SECONDS = 25.0
"""Time before the end without replays, since a replay waits for the stream's deduplication window."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: weight, range of the duration, and the victim, hit by one fault at a time."""

    name: str
    weight: float
    shortest: float
    longest: float
    where: str
    """``worker``, ``proxy`` (of one worker), or the name of a shared part."""


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
    """One fault: seconds after the start, kind, victim and duration."""

    at: float
    kind: str
    victim: str
    seconds: float
    draw: int
    """A random number for further choices."""

    @property
    def end(self) -> float:
        return self.at + self.seconds


def draw(seed: int, seconds: float, *, only: frozenset[str] = frozenset()) -> list[Fault]:
    """Draw two lanes of faults with short pauses; every kind comes once before kinds are drawn by weight.

    Args:
        seed: the same seed gives the same plan.
        seconds: duration of the traffic.
        only: kinds of faults to draw; empty: all.
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
    """Return whether two faults hit one victim at the same time, or with too short a pause."""
    if one.at > other.end + 0.5 or other.at > one.end + 0.5:
        return False
    return one.victim.split(":")[0] == other.victim.split(":")[0]
