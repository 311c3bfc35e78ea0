"""The page's first line: how it stands, in words, since when, and what helps. Decides only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

BEHIND_SECONDS = 60.0
"""Nothing that works leaves an event waiting for so long."""
STALE_SECONDS = 60.0
_DOCTOR = "python -m sea_mq_worker doctor"
_LISTS = {
    "outbox": "python -m sea_mq_worker outbox list --state DEAD",
    "inbox": "python -m sea_mq_worker dlq list",
}
_FIRST_EVENT = """\
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
VALUES (gen_random_uuid(), 'order', '1', 'order.paid', '{}');"""


class Level(StrEnum):
    """How urgent it is; the page's colours."""

    GOOD = "good"
    IDLE = "idle"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How one side stands; None: not counted yet, or not for this side."""

    name: str
    depth: int | None = None
    oldest_seconds: float | None = None
    dead: int | None = None
    scheduled: int = 0
    undelivered: int = 0
    """In the streams; beside ``depth``."""
    sample_age_seconds: float | None = None
    before: float | None = None
    """The depth five minutes ago."""
    done: int = 0


_SLOW_TYPES = "slow event types"
_ENDS_SLOW = (
    "python -m sea_mq_worker inbox resume",
    "python -m sea_mq_worker dlq redrive --dlq-reason REJECTED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A consumer that somebody has paused, although it has something to deliver."""

    stream: str
    durable: str
    pending: int
    paused_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is in the way; ``since`` in seconds since 1970."""

    part: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSummary:
    """``state`` is a word or two, ``text`` a sentence, ``helps`` commands or steps."""

    level: Level
    state: str
    text: str
    causes: Sequence[Cause] = ()
    helps: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that the verdict is made of; ``reasons``: why the worker is not ready, by part; ``since``: when."""

    reasons: Mapping[str, str]
    since: Mapping[str, float]
    sides: Sequence[Side]
    held: Sequence[Held] = ()
    waiting_for: str = ""


def summarize(situation: Situation) -> HealthSummary:
    """Return the first that holds, the most urgent first."""
    rules = (_stopping, _starting, _slow, _paused, _held, _stale, _behind, _dead, _empty)
    return next((verdict for rule in rules if (verdict := rule(situation))), _working(situation))


def _working(situation: Situation) -> HealthSummary:
    waiting = sum(side.undelivered for side in situation.sides)
    busy = waiting or any(side.depth for side in situation.sides)
    text = "Nothing is late." if busy else "Nothing waits."
    if waiting:
        text = f"Nothing that came is late; the streams have {waiting:,} still to deliver."
    return HealthSummary(level=Level.GOOD, state="Working", text=text)


def _stopping(situation: Situation) -> HealthSummary | None:
    if "stop" not in situation.reasons:
        return None
    return HealthSummary(level=Level.WARN, state="Stopping", text="What is in hand is finished first.")


def _starting(situation: Situation) -> HealthSummary | None:
    if "start" not in situation.reasons:
        return None
    return HealthSummary(
        level=Level.BAD if situation.waiting_for else Level.IDLE,
        state="Starting",
        text=situation.waiting_for or "Servers are being connected to.",
        causes=(Cause(part="start", reason=situation.reasons["start"], since=situation.since["start"]),),
        helps=(_DOCTOR,) if situation.waiting_for else (),
    )


def _slow(situation: Situation) -> HealthSummary | None:
    """Only some event types are in trouble."""
    if set(situation.reasons) != {_SLOW_TYPES}:
        return None
    cause = Cause(part=_SLOW_TYPES, reason=situation.reasons[_SLOW_TYPES], since=situation.since[_SLOW_TYPES])
    text = "The handler fails message after message of some event types. All others go on."
    return HealthSummary(level=Level.BAD, state="Slow", text=text, causes=(cause,), helps=_ENDS_SLOW)


def _paused(situation: Situation) -> HealthSummary | None:
    if not situation.reasons:
        return None
    causes = [
        Cause(part=part, reason=reason, since=situation.since[part])
        for part, reason in sorted(situation.reasons.items(), key=lambda each: _rank(each[0]))
    ]
    first = causes[0]
    return HealthSummary(
        level=Level.BAD,
        state="Paused",
        text=f"{_subject(first.part)}: {first.reason}",
        causes=causes,
        helps=(_DOCTOR, *_steps(first.part)),
    )


def _held(situation: Situation) -> HealthSummary | None:
    """Nothing comes of it, so nothing is late, and no gate is shut."""
    if not situation.held:
        return None
    told = "; ".join(
        f"consumer {each.durable} of {each.stream} is paused for {_duration(each.paused_seconds)} more, "
        f"and {each.pending:,} wait for it"
        for each in situation.held
    )
    helps = [f"nats consumer resume {each.stream} {each.durable}" for each in situation.held]
    return HealthSummary(level=Level.WARN, state="Held", text=f"{told[:1].upper()}{told[1:]}.", helps=helps)


def _rank(part: str) -> tuple[int, str]:
    """A database or broker that is away takes the others along: tell it first."""
    order = ("database", "nats", "stream", "consumer", "handler")
    return next((place for place, word in enumerate(order) if word in part), len(order)), part


def _subject(part: str) -> str:
    if "database" in part:
        return "PostgreSQL does not serve"
    if part.startswith("nats "):
        return "NATS does not serve"
    if part == "handler":
        return "The handler takes no messages"
    return f"{part[:1].upper()}{part[1:]} does not serve"


def _steps(part: str) -> tuple[str, ...]:
    if part.startswith(("stream", "consumer", "exhausted")):
        return ("python -m sea_mq_worker streams check",)
    return ()


def _stale(situation: Situation) -> HealthSummary | None:
    sides = [side for side in situation.sides if (side.sample_age_seconds or 0.0) > STALE_SECONDS]
    if not sides:
        return None
    named = " and ".join(side.name for side in sides)
    oldest = max(side.sample_age_seconds or 0.0 for side in sides)
    return HealthSummary(
        level=Level.WARN,
        state="Not sure",
        text=f"The {named} could not be counted for {_duration(oldest)}: the numbers below are older.",
        helps=(_DOCTOR,),
    )


def _behind(situation: Situation) -> HealthSummary | None:
    sides = [side for side in situation.sides if (side.oldest_seconds or 0.0) > BEHIND_SECONDS]
    if not sides:
        return None
    told = "; ".join(
        f"{side.name}: the oldest of {side.depth or 0:,} waits for {_duration(side.oldest_seconds or 0.0)}"
        f"{_trend(side)}"
        for side in sides
    )
    return HealthSummary(
        level=Level.WARN, state="Behind", text=f"{told[:1].upper()}{told[1:]}.", helps=(_DOCTOR,)
    )


def _trend(side: Side) -> str:
    if side.before is None or side.depth is None or side.before == side.depth:
        return ""
    return ", getting fewer" if side.depth < side.before else ", getting more"


def _dead(situation: Situation) -> HealthSummary | None:
    sides = [side for side in situation.sides if side.dead]
    if not sides:
        return None
    nouns = {"outbox": ("dead event", "dead events"), "inbox": ("dead letter", "dead letters")}
    told = " and ".join(f"{side.dead:,} {nouns[side.name][side.dead != 1]}" for side in sides)
    return HealthSummary(
        level=Level.WARN,
        state="Working",
        text=f"{told} stopped for good, until somebody sends them again.",
        helps=tuple(_LISTS[side.name] for side in sides),
    )


def _empty(situation: Situation) -> HealthSummary | None:
    if any(side.done or side.depth or side.scheduled or side.undelivered for side in situation.sides):
        return None
    return HealthSummary(
        level=Level.IDLE,
        state="Ready",
        text="Nothing has come through yet. Write an event, and it appears here.",
        helps=(_FIRST_EVENT,),
    )


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
