"""Health summary: the page's first line, with its causes and next steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from sea_mq_worker.admin.records import Cause, ConsumerSample, HealthSummary, Level, Sample
from sea_mq_worker.inbox.missed import RecordedMissed

BEHIND_SECONDS = 60.0
"""Age in seconds from which the oldest waiting event or message means that a side is behind."""
TREND_SECONDS = 300
"""Age in seconds of ``Side.before``."""
STALE_SECONDS = 60.0
"""Age in seconds from which a sample is outdated."""
_DOCTOR = "python -m sea_mq_worker doctor"
_LISTS = {
    "outbox": "python -m sea_mq_worker outbox list --state DEAD",
    "inbox": "python -m sea_mq_worker dlq list",
}
_FIRST_EVENT = """\
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
VALUES (gen_random_uuid(), 'order', '1', 'order.paid', '{}');"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """State of one side.

    Attributes:
        undelivered: messages still in the streams; the sample's depth excludes them.
        undelivered_seconds: age of the oldest of them.
        before: depth and undelivered messages five minutes ago; None: unknown.
    """

    name: str
    sample: Sample
    sample_age_seconds: float = 0.0
    undelivered: int = 0
    undelivered_seconds: float = 0.0
    before: float | None = None
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Input of the summary.

    Attributes:
        reasons: why the worker is not ready, by part.
        since: from when.
        warnings: the event types that the handler fails while it works for others, with the reason.
        slow_types: event types that the handler fails.
        missed: messages that will never be delivered, until an operator acknowledges them.
    """

    reasons: Mapping[str, str]
    since: Mapping[str, float]
    sides: Sequence[Side]
    warnings: Mapping[str, str] = field(default_factory=dict)
    paused_consumers: Sequence[ConsumerSample] = ()
    slow_types: Sequence[str] = ()
    missed: Sequence[RecordedMissed] = ()
    waiting_for: str = ""


def summarize(situation: Situation) -> HealthSummary:
    """Return the summary of the first rule that applies; the most urgent rule is first."""
    rules = (_stopping, _starting, _paused, _lost, _slow, _held, _stale, _behind, _dead, _empty)
    return next((summary for rule in rules if (summary := rule(situation))), _working(situation))


def _working(situation: Situation) -> HealthSummary:
    waiting = sum(side.undelivered for side in situation.sides)
    busy = waiting or any(side.sample.depth for side in situation.sides)
    text = "Nothing is late." if busy else "Nothing waits."
    if waiting:
        text = f"No received message is late; the streams have {waiting:,} more to deliver."
    return HealthSummary(level=Level.GOOD, state="Working", text=text)


def _stopping(situation: Situation) -> HealthSummary | None:
    if "stop" not in situation.reasons:
        return None
    return HealthSummary(level=Level.WARN, state="Stopping", text="The worker finishes work in flight.")


def _starting(situation: Situation) -> HealthSummary | None:
    if "start" not in situation.reasons:
        return None
    return HealthSummary(
        level=Level.BAD if situation.waiting_for else Level.IDLE,
        state="Starting",
        text=situation.waiting_for or "The worker connects to its servers.",
        causes=(Cause(part="start", reason=situation.reasons["start"], since=situation.since["start"]),),
        next_steps=(_DOCTOR,) if situation.waiting_for else (),
    )


def _slow(situation: Situation) -> HealthSummary | None:
    """The handler fails some event types and accepts others."""
    if not situation.warnings:
        return None
    causes = [
        Cause(part=part, reason=reason, since=situation.since[part])
        for part, reason in situation.warnings.items()
    ]
    first = causes[0]
    more = f" Further failing types: {len(causes) - 1}." if len(causes) > 1 else ""
    text = f"{_capital(first.part)} fails: {_first_sentence(first.reason)}.{more} Other types continue."
    steps = _slow_steps(situation.slow_types)
    return HealthSummary(level=Level.WARN, state="Slow", text=text, causes=causes, next_steps=steps)


def _slow_steps(event_types: Sequence[str]) -> list[str]:
    """Return the steps after the handler is fixed; senders choose the names of types."""
    redrive = "python -m sea_mq_worker dlq redrive --type {} --reason fixed"
    again = [redrive.format(quote(event_type)) for event_type in event_types]
    return ["python -m sea_mq_worker inbox resume --reason fixed", *again]


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
        text=f"{_subject(first.part)}: {_first_sentence(first.reason.removeprefix('PostgreSQL: '))}",
        causes=causes,
        next_steps=(_DOCTOR, *_steps(first.part, situation.slow_types)),
    )


def _lost(situation: Situation) -> HealthSummary | None:
    if not situation.missed:
        return None
    text = "; ".join(
        f"consumer {each.durable} of {each.stream} never got {each.count:,} messages, the last "
        f"{_duration(each.seconds)} ago between {each.first_seq} and {each.last_seq}"
        for each in situation.missed
    )
    cause = "The limits of the stream or a purge removed them: have their sender replay them"
    return HealthSummary(
        level=Level.BAD,
        state="Lost",
        text=f"{text[:1].upper()}{text[1:]}. {cause}; doctor prints how to acknowledge it.",
        next_steps=(_DOCTOR,),
    )


def _held(situation: Situation) -> HealthSummary | None:
    """A paused consumer delivers nothing, so no message is late and no circuit is open."""
    if not situation.paused_consumers:
        return None
    text = "; ".join(
        f"consumer {each.durable} of {each.stream} is paused for {_duration(each.paused_seconds)} more, "
        f"and {each.pending or 0:,} messages wait"
        for each in situation.paused_consumers
    )
    steps = [f"nats consumer resume {each.stream} {each.durable}" for each in situation.paused_consumers]
    return HealthSummary(level=Level.WARN, state="Held", text=f"{_capital(text)}.", next_steps=steps)


def _rank(part: str) -> tuple[int, str]:
    """Rank database and broker first: their outage causes others."""
    order = ("database", "nats", "stream", "consumer", "handler")
    return next((rank for rank, word in enumerate(order) if word in part), len(order)), part


def _subject(part: str) -> str:
    if "database" in part:
        return "Waiting for PostgreSQL"
    if part.startswith("nats "):
        return "NATS does not serve"
    if part == "handler":
        return "The handler takes no messages"
    if part.startswith("exhausted"):
        return "Exhausted messages cannot be read"
    return f"{_capital(part)} does not serve"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0]


def _steps(part: str, slow_types: Sequence[str]) -> Sequence[str]:
    if part == "handler" and slow_types:
        return _slow_steps(slow_types)
    if part.startswith(("stream", "consumer", "exhausted")):
        return ("python -m sea_mq_worker streams check",)
    return ()


def _stale(situation: Situation) -> HealthSummary | None:
    sides = [side for side in situation.sides if side.sample_age_seconds > STALE_SECONDS]
    if not sides:
        return None
    named = " and ".join(side.name for side in sides)
    oldest = max(side.sample_age_seconds for side in sides)
    return HealthSummary(
        level=Level.WARN,
        state="Not sure",
        text=f"The worker could not count the {named} for {_duration(oldest)}: the numbers are outdated.",
        next_steps=(_DOCTOR,),
    )


def _behind(situation: Situation) -> HealthSummary | None:
    sides = [side for side in situation.sides if _oldest_seconds(side) > BEHIND_SECONDS]
    if not sides:
        return None
    text = "; ".join(
        f"{side.name}: the oldest of {side.sample.depth + side.undelivered:,} waits for "
        f"{_duration(_oldest_seconds(side))}{_trend(side)}"
        for side in sides
    )
    return HealthSummary(level=Level.WARN, state="Behind", text=f"{_capital(text)}.", next_steps=(_DOCTOR,))


def _oldest_seconds(side: Side) -> float:
    return max(side.sample.oldest_seconds, side.undelivered_seconds)


def _trend(side: Side) -> str:
    now = side.sample.depth + side.undelivered
    if side.before is None or side.before == now:
        return ""
    if now > side.before:
        return ", increasing"
    return f", decreasing: none is left in about {_duration(now / (side.before - now) * TREND_SECONDS)}"


def _dead(situation: Situation) -> HealthSummary | None:
    sides = [side for side in situation.sides if side.sample.dead]
    if not sides:
        return None
    nouns = {"outbox": ("dead event", "dead events"), "inbox": ("dead letter", "dead letters")}
    counts = " and ".join(f"{side.sample.dead:,} {nouns[side.name][side.sample.dead != 1]}" for side in sides)
    return HealthSummary(
        level=Level.WARN,
        state="Working",
        text=f"{counts}: no retry without an operator.",
        next_steps=tuple(_LISTS[side.name] for side in sides),
    )


def _empty(situation: Situation) -> HealthSummary | None:
    sides = situation.sides
    if any(s.done or s.sample.depth or s.sample.scheduled or s.undelivered for s in sides):
        return None
    return HealthSummary(
        level=Level.IDLE,
        state="Ready",
        text="No event or message yet. Insert an event, and it appears here.",
        next_steps=(_FIRST_EVENT,),
    )


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
