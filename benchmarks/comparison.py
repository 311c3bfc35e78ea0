"""Relays' results with the same events, as medians and ratios."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peer_run import Measured

OURS = "sea_mq_worker"
PROGRAMS = ("relay", "postgres", "nats")
WORK = Path("~/.cache/sea_mq_worker/benchmarks")
"""Where the relays are installed."""
RELAYS = Path(__file__).parent / "relays"
"""Where the relays are described."""
UNKEYED, KEYED, STEADY = "drain, no keys", "drain, 10 to a key", "steady rate"


@dataclass(slots=True, kw_only=True)
class Lane:
    """A relay's results of one workload by round; each round has ``events``."""

    about: str
    events: int
    rounds: dict[int, Measured] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """All lanes by workload and relay; ``skipped`` has the reasons of omitted relays."""

    lanes: dict[str, dict[str, Lane]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the medians and every round."""
        return {
            "relays": {
                workload: {name: _summary(lane, lanes.get(OURS)) for name, lane in lanes.items()}
                for workload, lanes in self.lanes.items()
            },
            "skipped": self.skipped,
        }


def _summary(lane: Lane, ours: Lane | None) -> dict[str, Any]:
    rounds = lane.rounds
    found: dict[str, Any] = {
        "about": lane.about,
        "events": lane.events,
        "rounds": {str(number): asdict(measured) for number, measured in rounds.items()},
        "failures": {str(number): text for number, text in lane.failures.items()},
    }
    if rounds:
        found["rate"] = median(each.rate for each in rounds.values())
        found["cpu_seconds_per_100000"] = {
            program: median(each.cpu_seconds_per_100000[program] for each in rounds.values())
            for program in PROGRAMS
        }
        found["latency_ms"] = {
            percentile: median(each.latency_ms[percentile] for each in rounds.values())
            for percentile in next(iter(rounds.values())).latency_ms
        }
        found["ours_is_times"] = times(ours.rounds, rounds) if ours and not found["latency_ms"] else []
    return found


def times(ours: Mapping[int, Measured], theirs: Mapping[int, Measured]) -> list[float]:
    """Return the median, least and largest of the rounds' own ratios; nothing where no round has both."""
    ratios = [ours[number].rate / theirs[number].rate for number in ours.keys() & theirs.keys()]
    return [median(ratios), min(ratios), max(ratios)] if ratios else []


def fastest_first(lanes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the lanes that have a rate."""
    measured = [(name, lane) for name, lane in lanes.items() if "rate" in lane]
    return sorted(measured, key=lambda item: -item[1]["rate"])


def soonest_first(lanes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the lanes that have a latency."""
    measured = [(name, lane) for name, lane in lanes.items() if lane.get("latency_ms")]
    return sorted(measured, key=lambda item: float(item[1]["latency_ms"]["p99"]))


def notes(report: Mapping[str, Any]) -> list[str]:
    """Return the omissions and failures."""
    return [f"{name} left out: {_line(reason)}" for name, reason in report["skipped"].items()] + [
        f"{workload}, {name}, round {number} failed: {_line(text)}"
        for workload, lanes in report["relays"].items()
        for name, lane in lanes.items()
        for number, text in lane["failures"].items()
    ]


def _line(text: str) -> str:
    """Return the first and the last line: the attempt and its result."""
    lines = text.strip().splitlines()
    return lines[0] if len(lines) < 2 else f"{lines[0]} {lines[-1].strip()}"
