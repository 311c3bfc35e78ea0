"""``python -m benchmarks.peers``: the same events through this worker and through other relays. Linux only.

The relays are described in ``benchmarks/relays``; a relay that cannot be installed is reported and left out.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import KEYED, OURS, RELAYS, STEADY, UNKEYED, WORK, Comparison, Lane
from benchmarks.peer_run import Measured, PeerError
from benchmarks.peer_workloads import drain, steady
from benchmarks.relay import Description, RelayError, install
from benchmarks.report import Progress, machine, say, write
from benchmarks.results import of_comparison, on_terminal

_PER_KEY = {UNKEYED: 0, KEYED: 10, STEADY: 0}
_QUICK = {"rounds": 1, "events": 2_000, "rate": 100, "steady_seconds": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Sizes of the workloads.

    A backlog has the events that its relay drains in about ``seconds``, from 5,000 to ``events``: in a
    smaller one the relay's start and its batches would dominate. ``rate`` events a second come for
    ``steady_seconds``.
    """

    events: int
    seconds: float
    rate: int = 500
    steady_seconds: int = 20

    @property
    def least(self) -> int:
        return min(self.events, 5_000)

    def at(self, rate: float) -> int:
        """Return the events for a relay of that rate, in whole thousands."""
        return max(self.least, min(self.events, round(rate * self.seconds / 1e3) * 1_000))


def descriptions(names: Iterable[str] = ()) -> list[Description]:
    """Return our own description first, then the named ones, or all.

    Raises:
        RelayError: a description is missing or wrong.
    """
    chosen = dict.fromkeys([OURS, *(names or sorted(file.stem for file in RELAYS.glob("*.toml")))])
    return [Description.load(RELAYS / f"{name}.toml") for name in chosen]


async def compare(
    relays: Sequence[Description],
    *,
    workloads: Collection[str],
    size: Size,
    rounds: int,
    work: Path,
    timeout_seconds: float = 120,
    keep: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Measure every relay by every workload once a round, so that a slow minute affects all of them.

    Args:
        relays: the relays to compare.
        workloads: names of the workloads.
        size: their sizes; if a backlog's depends on the rate, an extra first round measures the rates.
        rounds: number of rounds.
        work: folder in which relays are installed, kept from run to run.
        timeout_seconds: limit of one drain, or of the time after the last event at the steady rate.
        keep: called with the results after each round.
    """
    comparison = Comparison()
    present = [each for each in relays if await _is_installed(each, work, comparison.skipped)]
    turns = [(workload, each) for workload in workloads for each in present if _takes(each, workload)]
    for workload, each in turns:
        events = size.rate * size.steady_seconds if workload == STEADY else size.least
        comparison.lanes.setdefault(workload, {})[each.name] = Lane(about=each.about, events=events)
    sized = [] if size.least == size.events else [turn for turn in turns if turn[0] != STEADY]
    progress = Progress(len(sized) + rounds * len(turns))
    for number in range(rounds + 1):
        for workload, each in turns if number else sized:
            lane = comparison.lanes[workload][each.name]
            given: dict[str, Any] = {
                "work": work / each.name,
                "events": lane.events,
                "timeout_seconds": timeout_seconds,
            }
            measuring = (
                steady(each, per_second=size.rate, **given)
                if workload == STEADY
                else drain(each, per_key=_PER_KEY[workload], **given)
            )
            result = await _turn(lane, number, measuring, size)
            progress.tell(f"round {number}, {workload}, {each.name}: {result}")
        keep(comparison)
    return comparison


async def _turn(lane: Lane, number: int, measuring: Awaitable[Measured], size: Size) -> str:
    """Record the result, or the size that follows from it in the extra first round."""
    try:
        measured = await measuring
    except (PeerError, RelayError) as error:
        lane.failures[number] = str(error)
        return str(error)
    if number:
        lane.rounds[number] = measured
    else:
        lane.events = size.at(measured.rate)
    return f"{measured.rate:,.0f}/s"


def _takes(relay: Description, workload: str) -> bool:
    return relay.ordered or not _PER_KEY[workload]


async def _is_installed(relay: Description, work: Path, skipped: dict[str, str]) -> bool:
    say(f"installing {relay.name}")
    try:
        await asyncio.to_thread(install, relay, work / relay.name)
    except (RelayError, OSError) as error:
        skipped[relay.name] = str(error)
        return False
    return True


def main() -> None:
    """Read the options, run, write the JSON file after each round and print the table."""
    parser = _parser()
    options = parser.parse_args()
    if options.quick:
        vars(options).update(_QUICK)
    try:
        relays = descriptions(options.relay)
    except RelayError as error:
        parser.error(str(error))
    about = machine()

    def keep(comparison: Comparison) -> None:
        write({"machine": about, **comparison.document()}, options.json)

    comparing = compare(
        relays,
        workloads=options.workload or list(_PER_KEY),
        size=Size(
            events=options.events,
            seconds=options.seconds,
            rate=options.rate,
            steady_seconds=options.steady_seconds,
        ),
        rounds=options.rounds,
        work=options.work.expanduser().resolve(),
        timeout_seconds=options.timeout,
        keep=keep,
    )
    print(*on_terminal(of_comparison(asyncio.run(comparing).document())), sep="\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--relay", action="append", default=[], help="one of benchmarks/relays; repeatable")
    parser.add_argument(
        "--workload", action="append", choices=_PER_KEY, metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--events", type=int, default=20_000, help="most in a backlog (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=4, help="what a drain is to take where 5,000 suffice (%(default)s)"
    )
    parser.add_argument(
        "--rate", type=int, default=500, help="events a second at the steady rate (%(default)s)"
    )
    parser.add_argument(
        "--steady-seconds", type=int, default=20, help="how long they come, from 3 (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="each of every relay and workload (%(default)s)"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks-peers.json"), help="file to write")
    parser.add_argument("--work", type=Path, default=WORK, help="where relays are installed (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=120, help="limit of one drain in seconds (%(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="one small round, to see that all of it works")
    return parser


if __name__ == "__main__":
    main()
