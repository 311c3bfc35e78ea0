"""One simulation as plain data: writes and their times, faults, and actions of operators.

Times are seconds of virtual time.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

END = 16.0
"""After this nothing new goes wrong."""

STORE_TROUBLES = ("store refuses", "store forgets to answer", "store is late")
BROKER_TROUBLES = ("broker down", "broker crashes", "frames lost", "answers lost", "frames late")
ACK_TROUBLES = ("acks lost", "acks late")
HANDLER_TROUBLES = ("handler unreachable", "handler sick", "handler rejects")
WORKER_TROUBLES = ("killed", "frozen", "frozen", "stopped")
MAY_BE_LONG = frozenset({"broker down", "broker crashes", "frozen", *HANDLER_TROUBLES})
LONG = 45.0
"""Longer than the duplicate window; only for what spends no event's and no message's life meanwhile."""
CLOCK_TROUBLES = ("clock jumps",)

FLAWS_OF_ROWS = ("", "", "", "", "", "", "", "type", "large", "failing")
FLAWS_OF_MESSAGES = ("", "", "", "", "", "id", "body", "subject", "conflict", "repeat")
ANSWERS = ("ok", "ok", "slow", "500", "404", "wait", "lost", "hang", "422")


@dataclass(frozen=True, slots=True)
class Row:
    """An event that a producer writes; ``flaw`` says why it can never be published."""

    key: str | None
    flaw: str = ""
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """A producer's transaction: its rows get their place at the start and are seen after ``seconds``."""

    at: float
    seconds: float
    commits: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What another context sends; after ``answers`` the handler says "ok" or, if stubborn, the last again."""

    at: float
    flaw: str = ""
    answers: tuple[str, ...] = ()
    stubborn: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something goes wrong from ``at`` on for ``seconds``; ``worker`` is whom it hits, where it hits one."""

    kind: str
    at: float
    seconds: float
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """An operator replays an event or redrives a dead letter: the ``nth``, if there is one by then."""

    kind: str
    at: float
    nth: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation.

    Attributes:
        keeps_order: the publisher sends batches that store nothing behind what was not stored.
        hold_dead_keys: a dead event holds back the later ones of its key.
        tight: so few attempts and deliveries that the server gives messages up.
        skew: how far each worker's wall clock is off.
    """

    workers: int
    keeps_order: bool = False
    hold_dead_keys: bool = False
    tight: bool = False
    skew: float = 0.0
    transactions: tuple[Transaction, ...] = ()
    messages: tuple[Message, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    actions: tuple[Action, ...] = ()

    def kinds(self) -> frozenset[str]:
        """Return the kinds of trouble in it."""
        return frozenset(trouble.kind for trouble in self.troubles)


def draw_plan(seed: int) -> Plan:
    """Draw a plan: one side of the worker or both, few events, few troubles."""
    dice = random.Random(seed)
    side = dice.choice(("outbound", "outbound", "inbound", "inbound", "both"))
    transactions = () if side == "inbound" else _some(dice, 1, 5, _transaction)
    messages = () if side == "outbound" else _messages(dice)
    busy = [written.at + written.seconds for written in transactions]
    busy += [message.at for message in messages]
    plan = Plan(
        workers=dice.choice((1, 2, 2, 3)),
        keeps_order=dice.choice((False, True)),
        hold_dead_keys=dice.choice((False, False, True)),
        tight=dice.choice((False, False, True)),
        skew=dice.choice((0.0, 0.0, 3600.0, -3600.0)),
        transactions=transactions,
        messages=messages,
        troubles=_troubles(dice, side, busy),
        actions=_some(dice, 0, 2, lambda dice: _action(dice, side)),
    )
    return dataclasses.replace(plan, troubles=plan.troubles + _some(dice, 0, 1, _session_trouble))


def _some(dice: random.Random, low: int, high: int, make: Callable[[random.Random], T]) -> tuple[T, ...]:
    return tuple(make(dice) for _ in range(dice.randint(low, high)))


def _moment(dice: random.Random, end: float = END) -> float:
    return dice.randint(0, int(end * 10)) / 10


def _transaction(dice: random.Random) -> Transaction:
    return Transaction(
        at=_moment(dice, END / 2),
        seconds=dice.choice((0.0, 0.0, 0.0, 0.5, 3.0)),
        commits=dice.randint(0, 7) > 0,
        rows=_some(dice, 1, 4, _row),
    )


def _row(dice: random.Random) -> Row:
    return Row(
        key=dice.choice((None, "a", "a", "b")),
        flaw=dice.choice(FLAWS_OF_ROWS),
        delay=dice.choice((0.0, 0.0, 0.0, 5.0)),
    )


def _messages(dice: random.Random) -> tuple[Message, ...]:
    """At most as many messages that always fail as do not look like a sick handler; a rejection ends."""
    drawn = _some(dice, 1, dice.choice((6, 6, 12)), _message)
    stubborn = [message for message in drawn if message.stubborn and message.answers[-1] != "422"]
    return tuple(
        dataclasses.replace(message, stubborn=False) if message in stubborn[2:] else message
        for message in drawn
    )


def _message(dice: random.Random) -> Message:
    answers = _some(dice, 0, 2, lambda dice: dice.choice(ANSWERS))
    stubborn = bool(answers) and answers[-1] in {"500", "422", "404"} and dice.randint(0, 2) == 0
    return Message(
        at=_moment(dice, END / 2), flaw=dice.choice(FLAWS_OF_MESSAGES), answers=answers, stubborn=stubborn
    )


def _troubles(dice: random.Random, side: str, busy: Sequence[float]) -> tuple[Trouble, ...]:
    """Half of them are of one kind, because some ends take the same thing more than once."""
    kinds = [WORKER_TROUBLES, WORKER_TROUBLES, BROKER_TROUBLES, STORE_TROUBLES, CLOCK_TROUBLES]
    if side != "outbound":
        kinds += [HANDLER_TROUBLES, ACK_TROUBLES]
    favourite = dice.choice(dice.choice(kinds))

    def trouble(dice: random.Random) -> Trouble:
        """Half of them come just when there is something to do."""
        kind = favourite if dice.randint(0, 1) else dice.choice(dice.choice(kinds))
        lengths = (0.3, 2.0, 8.0, 10.0, *([LONG] if kind in MAY_BE_LONG else []))
        return Trouble(
            kind=kind,
            at=dice.choice((_moment(dice), dice.choice(busy) + dice.randint(0, 6) / 20)),
            seconds=dice.choice(lengths),
            worker=dice.randint(0, 2),
        )

    return _some(dice, 0, 5, trouble)


def _session_trouble(dice: random.Random) -> Trouble:
    """Long enough, at times, that another worker takes over."""
    seconds = dice.choice((0.1, 2.0, 8.0))
    return Trouble(kind="session lost", at=_moment(dice), seconds=seconds, worker=dice.randint(0, 2))


def _action(dice: random.Random, side: str) -> Action:
    kinds = {"outbound": ("replay",), "inbound": ("redrive",)}.get(side, ("replay", "redrive"))
    return Action(kind=dice.choice(kinds), at=_moment(dice) + 2.0, nth=dice.randint(0, 3))
