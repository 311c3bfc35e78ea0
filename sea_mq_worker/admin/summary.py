"""Health summary: the page's first line, with its causes and next steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from shlex import quote
from typing import Literal, TypeAlias

from sea_mq_worker.inbox.undelivered import RecordedMissed
from sea_mq_worker.operators.records import ConsumerState

Level: TypeAlias = Literal["good", "idle", "warn", "bad"]
"""Urgency; the page shows each level in its own colour."""

BEHIND_SECONDS = 60.0
"""Age in seconds from which the oldest waiting event or message means that a side is behind."""
STALE_SECONDS = 60.0
"""Age in seconds from which a sample is outdated."""
TREND_SECONDS = 300
"""Age in seconds of ``Side.before``."""

_DOCTOR = "python -m sea_mq_worker doctor"
_DEAD = {
    "outbox": ("dead event", "python -m sea_mq_worker outbox list --state DEAD"),
    "inbox": ("dead letter", "python -m sea_mq_worker dlq list"),
}
_FIRST_EVENT = """\
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
VALUES (gen_random_uuid(), 'order', '1', 'order.paid', '{}');"""
_CAUSES_FIRST = ("database", "nats", "stream", "consumer", "handler")
"""Words in the names of parts: the outage of an earlier one causes trouble of a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """State of one side.

    Attributes:
        waiting: events or messages that are due, including ``undelivered``.
        undelivered: messages that wait in the streams.
        oldest_seconds: age of the oldest of ``waiting``.
        sample_age_seconds: age of the numbers.
        before: ``waiting`` five minutes ago; None: unknown.
        done: number of events or messages that this worker has finished.
    """

    name: str
    waiting: int = 0
    undelivered: int = 0
    oldest_seconds: float = 0.0
    dead: int = 0
    scheduled: int = 0
    sample_age_seconds: float = 0.0
    before: float | None = None
    done: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Input of the summary.

    Attributes:
        reasons: why the worker is not ready, by part.
        warnings: the event types that the handler fails while it works for others, with the reason.
        since: from when, in seconds since 1970, for both.
        paused_consumers: those with messages to deliver.
        missed: messages that will never be delivered, until an operator acknowledges them.
        waiting_for: the server that the start waits for, in words.
    """

    sides: Sequence[Side] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)
    paused_consumers: Sequence[ConsumerState] = ()
    slow_types: Sequence[str] = ()
    missed: Sequence[RecordedMissed] = ()
    waiting_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for not being ready; ``since`` is in seconds since 1970."""

    part: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSummary:
    """``state`` is a word or two, ``text`` a sentence, ``next_steps`` are commands; ``since``: from 1970."""

    level: Level
    state: str
    text: str
    causes: Sequence[Cause] = ()
    next_steps: Sequence[str] = ()
    since: float = 0.0


def health_summary(now: Situation) -> HealthSummary:
    """Return the summary of the first rule that holds."""
    return next(chain(_not_working(now), _working_badly(now), _working(now)))


def _not_working(now: Situation) -> Iterator[HealthSummary]:
    """Yield a summary for each rule that holds, the most urgent first."""
    if "stop" in now.reasons:
        yield HealthSummary(level="warn", state="Stopping", text="The worker finishes work in flight.")
    if "start" in now.reasons:
        yield HealthSummary(
            level="bad" if now.waiting_for else "idle",
            state="Starting",
            text=now.waiting_for or "The worker connects to its servers.",
            causes=(Cause(part="start", reason=now.reasons["start"], since=now.since["start"]),),
            next_steps=(_DOCTOR,) if now.waiting_for else (),
        )
    if now.reasons:
        yield _paused(now)
    if now.missed:
        what = "; ".join(
            f"consumer {each.durable} of {each.stream} never got {each.count:,} messages, the last "
            f"{_duration(each.seconds)} ago between {each.first_seq} and {each.last_seq}"
            for each in now.missed
        )
        why = "The limits of the stream or a purge removed them: have their sender replay them"
        text = f"{_capital(what)}. {why}; doctor prints how to acknowledge it."
        yield HealthSummary(level="bad", state="Lost", text=text, next_steps=(_DOCTOR,))


def _working_badly(now: Situation) -> Iterator[HealthSummary]:
    """Yield the same for a worker that works."""
    if now.warnings:  # the handler fails some event types and accepts others
        first, *others = causes = _causes(now.warnings, now.since)
        more = f" Further failing types: {len(others)}." if others else ""
        text = f"{_capital(first.part)} fails: {_first_sentence(first.reason)}.{more} Other types continue."
        steps = _after_the_fix(now.slow_types)
        yield HealthSummary(level="warn", state="Slow", text=text, causes=causes, next_steps=steps)
    if now.paused_consumers:  # they deliver nothing, so no message is late and no circuit is open
        what = "; ".join(
            f"consumer {each.durable} of {each.stream} is paused for {_duration(each.paused_seconds)} more, "
            f"and {each.pending:,} messages wait"
            for each in now.paused_consumers
        )
        steps = [f"nats consumer resume {each.stream} {each.durable}" for each in now.paused_consumers]
        yield HealthSummary(level="warn", state="Held", text=f"{_capital(what)}.", next_steps=steps)
    if old := [side for side in now.sides if side.sample_age_seconds > STALE_SECONDS]:
        names = " and ".join(side.name for side in old)
        age = _duration(max(side.sample_age_seconds for side in old))
        text = f"The worker could not count the {names} for {age}: the numbers are outdated."
        yield HealthSummary(level="warn", state="Not sure", text=text, next_steps=(_DOCTOR,))
    if late := [side for side in now.sides if side.oldest_seconds > BEHIND_SECONDS]:
        what = "; ".join(
            f"{side.name}: the oldest of {side.waiting:,} waits for "
            f"{_duration(side.oldest_seconds)}{_trend(side)}"
            for side in late
        )
        yield HealthSummary(level="warn", state="Behind", text=f"{_capital(what)}.", next_steps=(_DOCTOR,))
    if dead := {side.name: side.dead for side in now.sides if side.dead}:
        counts = " and ".join(f"{n:,} {_DEAD[side][0]}{'s' * (n != 1)}" for side, n in dead.items())
        steps = [_DEAD[side][1] for side in dead]
        text = f"{counts}: no retry without an operator."
        yield HealthSummary(level="warn", state="Working", text=text, next_steps=steps)


def _working(now: Situation) -> Iterator[HealthSummary]:
    """Yield the summary of a worker without a problem."""
    undelivered = sum(side.undelivered for side in now.sides)
    if undelivered:
        text = f"No received message is late; the streams have {undelivered:,} more to deliver."
    elif any(side.waiting for side in now.sides):
        text = "Nothing is late."
    elif any(side.done or side.scheduled for side in now.sides):
        text = "Nothing waits."
    else:
        text = "No event or message yet. Insert an event, and it appears here."
        yield HealthSummary(level="idle", state="Ready", text=text, next_steps=(_FIRST_EVENT,))
    yield HealthSummary(level="good", state="Working", text=text)


def _paused(now: Situation) -> HealthSummary:
    """Name the first cause: the others may follow from it."""
    causes = sorted(_causes(now.reasons, now.since), key=_rank)
    part, reason = causes[0].part, causes[0].reason.removeprefix("PostgreSQL: ")
    if "database" in part:
        subject = "Waiting for PostgreSQL"
    elif part.startswith("nats "):
        subject = "NATS does not serve"
    elif part == "handler":
        subject = "The handler takes no messages"
    elif part.startswith("exhausted"):
        subject = "Exhausted messages cannot be read"
    else:
        subject = f"{_capital(part)} does not serve"
    steps = [_DOCTOR]
    if part == "handler" and now.slow_types:
        steps += _after_the_fix(now.slow_types)
    elif part.startswith(("stream", "consumer", "exhausted")):
        steps.append("python -m sea_mq_worker streams check")
    text = f"{subject}: {_first_sentence(reason)}"
    return HealthSummary(level="bad", state="Paused", text=text, causes=causes, next_steps=steps)


def _trend(side: Side) -> str:
    if side.before is None or side.before == side.waiting:
        return ""
    if side.waiting > side.before:
        return ", increasing"
    left = side.waiting / (side.before - side.waiting) * TREND_SECONDS
    return f", decreasing: none is left in about {_duration(left)}"


def _causes(reasons: Mapping[str, str], since: Mapping[str, float]) -> list[Cause]:
    return [Cause(part=part, reason=reason, since=since[part]) for part, reason in reasons.items()]


def _rank(cause: Cause) -> tuple[int, str]:
    found = (rank for rank, word in enumerate(_CAUSES_FIRST) if word in cause.part)
    return next(found, len(_CAUSES_FIRST)), cause.part


def _after_the_fix(slow_types: Sequence[str]) -> list[str]:
    """Return the steps after the handler is fixed; senders choose the names of types."""
    redrive = "python -m sea_mq_worker dlq redrive --type {} --reason fixed"
    resume = "python -m sea_mq_worker inbox resume --reason fixed"
    return [resume, *(redrive.format(quote(event_type)) for event_type in slow_types)]


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0]


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.{int(seconds < 10 * size)}f} {unit}"
    return f"{seconds:.0f} s"
