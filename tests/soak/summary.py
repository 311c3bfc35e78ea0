"""The result of a soak, as data and as a page of text."""

from collections import Counter
from typing import Any

from tests.soak.checks import Check, late_calls, log_rates, replays, slopes, sometimes
from tests.soak.evidence import Evidence
from tests.soak.run import Soaked

_OFFENDERS = 10


def data(soaked: Soaked) -> dict[str, Any]:
    """Return the result as JSON data."""
    e = soaked.evidence
    rates = [lines / minutes for lines, minutes in log_rates(e).values() if minutes > 0.5]
    return {
        "passed": soaked.passed,
        "seed": soaked.seed,
        "seconds": soaked.seconds,
        "planted_bug": soaked.bug,
        "planned": soaked.planned,
        "injected": len(e.faults),
        "by_kind": dict(sorted(Counter(fault.kind for fault in e.faults).items())),
        "drain_seconds": round(soaked.drain_seconds, 1),
        "outbound": _outbound(e),
        "inbound": _inbound(e),
        "exits": dict(
            sorted(Counter(f"{life.code} ({life.signal or 'no signal'})" for life in e.lives).items())
        ),
        "sometimes": sometimes(e),
        "session_samples": e.session_samples,
        "log_lines_per_minute_max": round(max(rates, default=0.0), 1),
        "slopes": slopes(e),
        "commands": [f"{fault.kind}: {fault.note}" for fault in e.faults if fault.note],
        "checks": [_check(check) for check in soaked.checks],
    }


def _outbound(e: Evidence) -> dict[str, Any]:
    states = Counter(row["state"] for row in e.outbox.values())
    return {
        "committed": len(e.outbox),
        "published": states["PUBLISHED"],
        "dead": states["DEAD"],
        "extra_copies": len(e.events) - states["PUBLISHED"],
        "replays": replays(e).total(),
    }


def _inbound(e: Evidence) -> dict[str, Any]:
    late = [why for *_, why in late_calls(e)]
    return {
        "messages": len(e.upstream),
        "processed": sum(row["processed_at"] is not None for row in e.inbox.values()),
        "dead_letters": dict(Counter(letter.headers["Dlq-Reason"] for letter in e.letters)),
        "handler_calls": len(e.heard),
        "effects": sum(e.effects.values()),
        "double_effects": sum(count > 1 for count in e.effects.values()),
        "late_calls": {why or "unexplained": count for why, count in Counter(late).items()},
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "title": check.title,
        "passed": check.passed,
        "offenders": len(check.offenders),
        "first": list(check.offenders[:_OFFENDERS]),
    }


def page(result: dict[str, Any]) -> str:
    """Format the result for people."""
    verdict = "PASSED" if result["passed"] else "FAILED"
    bug = f", planted bug {result['planted_bug']}" if result["planted_bug"] else ""
    lines = [f"soak: {verdict}; seed {result['seed']}, {result['seconds']:g} s{bug}"]
    lines += [f"{result['injected']} faults, all settled {result['drain_seconds']} s after the last:"]
    lines += [f"    {count:4d} {kind}" for kind, count in result["by_kind"].items()]
    for part in ("outbound", "inbound", "exits", "sometimes"):
        lines += [f"{part}:"]
        lines += [
            f"    {name.replace('_', ' ')}: {_formatted(value)}" for name, value in result[part].items()
        ]
    lines += [f"most log lines of a worker in a minute: {result['log_lines_per_minute_max']}"]
    for s in result["slopes"]:
        size = f"{s['rss_mb']} MB ({s['rss_mb_per_minute']:+} a minute)"
        rest = (
            f"{s['fds']} descriptors ({s['fds_growth']:+}), {s['threads']} threads ({s['threads_growth']:+})"
        )
        lines += [f"{s['life']} over {s['seconds']} s: {size}, {rest}"]
    return "\n".join(lines + [line for check in result["checks"] for line in _judged(check)])


def _formatted(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return str(value)


def _judged(check: dict[str, Any]) -> list[str]:
    if check["passed"]:
        return [f"ok  {check['name']:4} {check['title']}"]
    head = f"RED {check['name']:4} {check['title']}: {check['offenders']} offenders"
    return [head, *(f"         {text}" for text in check["first"])]
