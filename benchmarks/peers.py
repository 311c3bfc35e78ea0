"""``python -m benchmarks.peers``: the same backlogs drained by this worker and by other relays. Linux only.

The relays are described in ``benchmarks/relays``; one that cannot be installed is told and left out.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peer_drain import Drained, DrainError, drain
from benchmarks.report import machine
from kit.description import Description, DescriptionError
from kit.guarantees import Guarantee
from kit.provision import install
from kit.relay import RelayError

OURS = "sea_mq_worker"
RELAYS = Path(__file__).parent / "relays"
UNKEYED = "drain, no keys"
KEYED = "drain, 10 to a key"
PROGRAMS = ("relay", "postgres", "nats")
_PER_KEY = {UNKEYED: 0, KEYED: 10}
WORK = Path("~/.cache/sea_mq_worker/benchmarks")


@dataclass(slots=True, kw_only=True)
class Lane:
    """What a relay did with one workload, by the number of the round."""

    about: str
    rounds: dict[int, Drained] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """All lanes by workload and relay; ``skipped`` tells why a relay was left out."""

    events: int
    lanes: dict[str, dict[str, Lane]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the medians and every round."""
        return {
            "events": self.events,
            "workloads": {
                workload: {name: _summary(lane, lanes.get(OURS)) for name, lane in lanes.items()}
                for workload, lanes in self.lanes.items()
            },
            "skipped": self.skipped,
        }


def descriptions(names: Iterable[str] = (), *, folder: Path = RELAYS) -> list[Description]:
    """Return our own and the named ones, or all there are; our own comes first.

    Raises:
        DescriptionError: one is missing or wrong.
    """
    chosen = dict.fromkeys([OURS, *(names or sorted(file.stem for file in folder.glob("*.toml")))])
    return [Description.load(folder / f"{name}.toml") for name in chosen]


async def drain_peers(
    relays: Sequence[Description], *, events: int, rounds: int, work: Path, patience: float = 120
) -> Comparison:
    """Let every relay drain every workload once a round, so that a slow minute touches them all.

    Args:
        relays: those to compare.
        events: in a backlog.
        rounds: how often.
        work: where relays are installed, kept from run to run.
        patience: seconds that a drain may take.
    """
    comparison = Comparison(events=events)
    present = [each for each in relays if await _is_installed(each, work, comparison.skipped)]
    for number in range(1, rounds + 1):
        for workload, per_key in _PER_KEY.items():
            lanes = comparison.lanes.setdefault(workload, {})
            for each in present:
                if per_key and Guarantee.ORDER in each.not_promised:
                    continue
                lane = lanes.setdefault(each.name, Lane(about=each.about))
                try:
                    lane.rounds[number] = await drain(
                        each, work=work / each.name, events=events, per_key=per_key, patience=patience
                    )
                    said = f"{lane.rounds[number].rate:,.0f}/s"
                except (DrainError, RelayError, DescriptionError) as error:
                    said = lane.failures[number] = str(error)
                _say(f"round {number}, {workload}, {each.name}: {said}")
    return comparison


async def _is_installed(relay: Description, work: Path, skipped: dict[str, str]) -> bool:
    _say(f"installing {relay.name}")
    try:
        await asyncio.to_thread(install, relay, work / relay.name)
    except (RelayError, DescriptionError, OSError) as error:
        skipped[relay.name] = str(error)
        return False
    return True


def _summary(lane: Lane, ours: Lane | None) -> dict[str, Any]:
    rounds = lane.rounds
    found: dict[str, Any] = {
        "about": lane.about,
        "rounds": {number: asdict(drained) for number, drained in rounds.items()},
        "failures": lane.failures,
    }
    if rounds:
        found["rate"] = median(each.rate for each in rounds.values())
        found["cpu_seconds_per_100000"] = {
            program: median(each.cpu_seconds_per_100000[program] for each in rounds.values())
            for program in PROGRAMS
        }
        found["ours_is_times"] = times(ours.rounds, rounds) if ours else None
    return found


def times(ours: Mapping[int, Drained], theirs: Mapping[int, Drained]) -> float | None:
    """Return the median of the rounds' own ratios; None where no round has both."""
    ratios = [ours[number].rate / theirs[number].rate for number in ours.keys() & theirs.keys()]
    return median(ratios) if ratios else None


def table(report: Mapping[str, Any]) -> str:
    """Write the medians for people, the fastest first, and below them what failed or was left out."""
    rows = [["workload", "relay", "events/s", "ours is", *PROGRAMS]]
    notes = [f"{name} left out: {_line(reason)}" for name, reason in report["skipped"].items()]
    for workload, lanes in report["workloads"].items():
        measured = {name: lane for name, lane in lanes.items() if "rate" in lane}
        for name, lane in sorted(measured.items(), key=lambda item: -item[1]["rate"]):
            ratio = f"{lane['ours_is_times']:.2f} x" if lane["ours_is_times"] else "-"
            costs = [f"{lane['cpu_seconds_per_100000'][program]:.1f}" for program in PROGRAMS]
            rows.append([workload, name, f"{lane['rate']:,.0f}", ratio, *costs])
        for name, lane in lanes.items():
            notes += [
                f"{workload}, {name}, round {number} failed: {_line(text)}"
                for number, text in lane["failures"].items()
            ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.append("CPU seconds of relay, postgres and nats per 100,000 events")
    return "\n".join([*lines, *notes])


def _line(text: str) -> str:
    """Return the first and the last line: what was tried, and what came of it."""
    lines = text.strip().splitlines()
    return lines[0] if len(lines) < 2 else f"{lines[0]} {lines[-1].strip()}"


def main() -> None:
    """Read the options, run, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--relay", action="append", default=[], help="one of benchmarks/relays; repeatable")
    parser.add_argument("--events", type=int, default=20_000, help="in a backlog (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="each of every relay and workload (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--work", type=Path, default=WORK, help="where relays are installed (%(default)s)")
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds that a drain may take (%(default)s)"
    )
    options = parser.parse_args()
    try:
        relays = descriptions(options.relay)
    except DescriptionError as error:
        parser.error(str(error))
    comparison = asyncio.run(
        drain_peers(
            relays,
            events=options.events,
            rounds=options.rounds,
            work=options.work.expanduser().resolve(),
            patience=options.patience,
        )
    )
    report = {"machine": machine(), **comparison.document()}
    print(table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
