"""``python -m benchmarks.peers``: the same backlogs drained by this worker and by other relays. Linux only.

The relays are described in ``benchmarks/relays``; a relay that cannot be installed is reported and left out.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import OURS, Comparison, Lane, table
from benchmarks.peer_drain import Drained, DrainError, drain
from benchmarks.report import Progress, machine, say, write
from kit.description import Description, DescriptionError
from kit.guarantees import Guarantee
from kit.process import CommandError
from kit.provision import install

RELAYS = Path(__file__).parent / "relays"
UNKEYED = "drain, no keys"
KEYED = "drain, 10 to a key"
WORK = Path("~/.cache/sea_mq_worker/benchmarks")
_PER_KEY = {UNKEYED: 0, KEYED: 10}
_QUICK = {"rounds": 1, "events": 2_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a backlog: the events that its relay drains in about ``seconds``, from 5,000 to ``events``.

    In a smaller backlog the relay's start and its batches would dominate.
    """

    events: int
    seconds: float

    @property
    def least(self) -> int:
        return min(self.events, 5_000)

    def at(self, rate: float) -> int:
        """Return the events for a relay of that rate, in whole thousands."""
        return max(self.least, min(self.events, round(rate * self.seconds / 1e3) * 1_000))


def descriptions(names: Iterable[str] = (), *, folder: Path = RELAYS) -> list[Description]:
    """Return our own description first, then the named ones, or all.

    Raises:
        DescriptionError: a description is missing or wrong.
    """
    chosen = dict.fromkeys([OURS, *(names or sorted(file.stem for file in folder.glob("*.toml")))])
    return [Description.load(folder / f"{name}.toml") for name in chosen]


async def drain_peers(
    relays: Sequence[Description],
    *,
    size: Size,
    rounds: int,
    work: Path,
    timeout_seconds: float = 120,
    keep: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Let every relay drain every workload once a round, so that a slow minute affects all of them.

    Args:
        relays: the relays to compare.
        size: size of a backlog; if it depends on the rate, an extra first round measures the rates.
        rounds: number of rounds.
        work: folder in which relays are installed, kept from run to run.
        timeout_seconds: limit of one drain.
        keep: called with the results after each round.
    """
    comparison = Comparison()
    present = [each for each in relays if await _is_installed(each, work, comparison.skipped)]
    turns = [(workload, each) for workload in _PER_KEY for each in present if _takes(each, workload)]
    for workload, each in turns:
        lanes = comparison.lanes.setdefault(workload, {})
        lanes[each.name] = Lane(about=each.about, events=size.least)
    numbers = range(1 if size.least == size.events else 0, rounds + 1)
    progress = Progress(len(numbers) * len(turns))
    for number in numbers:
        for workload, each in turns:
            lane = comparison.lanes[workload][each.name]
            drained = drain(
                each,
                work=work / each.name,
                events=lane.events,
                per_key=_PER_KEY[workload],
                timeout_seconds=timeout_seconds,
            )
            result = await _turn(lane, number, drained, size)
            progress.tell(f"round {number}, {workload}, {each.name}: {result}")
        keep(comparison)
    return comparison


async def _turn(lane: Lane, number: int, draining: Awaitable[Drained], size: Size) -> str:
    """Record a drain's result, or the size that follows from it in the extra first round."""
    try:
        drained = await draining
    except (DrainError, CommandError, DescriptionError) as error:
        lane.failures[number] = str(error)
        return str(error)
    if number:
        lane.rounds[number] = drained
    else:
        lane.events = size.at(drained.rate)
    return f"{drained.rate:,.0f}/s"


def _takes(relay: Description, workload: str) -> bool:
    return not (_PER_KEY[workload] and Guarantee.ORDER in relay.not_promised)


async def _is_installed(relay: Description, work: Path, skipped: dict[str, str]) -> bool:
    say(f"installing {relay.name}")
    try:
        await asyncio.to_thread(install, relay, work / relay.name)
    except (CommandError, DescriptionError, OSError) as error:
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
    except DescriptionError as error:
        parser.error(str(error))
    about = machine()

    def keep(comparison: Comparison) -> None:
        write({"machine": about, **comparison.document()}, options.json)

    comparing = drain_peers(
        relays,
        size=Size(events=options.events, seconds=options.seconds),
        rounds=options.rounds,
        work=options.work.expanduser().resolve(),
        timeout_seconds=options.timeout,
        keep=keep,
    )
    print(table(asyncio.run(comparing).document()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--relay", action="append", default=[], help="one of benchmarks/relays; repeatable")
    parser.add_argument("--events", type=int, default=20_000, help="most in a backlog (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=4, help="what a drain is to take where 5,000 suffice (%(default)s)"
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
