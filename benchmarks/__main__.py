"""``python -m benchmarks``: measure the worker beside floors, on servers of its own. Linux only."""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import uvloop

from benchmarks.backlogs import BACKLOGS
from benchmarks.comparison import WORK
from benchmarks.report import WORKER, Progress, Round, document, machine, write
from benchmarks.results import of_workloads, on_terminal
from benchmarks.stage import open_stage
from benchmarks.sweep import RATES
from benchmarks.workloads import Workload, long_workloads, network_workloads, workloads

Results: TypeAlias = dict[str, list[Round]]
"""The rounds so far, by workload."""

_QUICK = {
    "rounds": 1,
    "events": 1_000,
    "messages": 200,
    "rate": 50,
    "rates": (100,),
    "backlogs": (500, 2_000),
    "seconds": 3,
    "idle": 1.0,
    "history": 5_000,
    "looks": 2,
    "churn": 5_000,
    "memory": 5_000,
}


def main() -> None:
    """Read the options, run, write the JSON file after each round and print the tables."""
    parser = options_parser()
    options = parser.parse_args()
    if options.quick:
        vars(options).update(_QUICK)
    usual, long, networked = workloads(options), long_workloads(options), network_workloads(options)
    every = {**usual, **long, **networked}
    names = options.workload or [*usual, *(long if options.all else ())]
    unknown = set(names) - every.keys()
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are: {'; '.join(every)}")
    chosen = {name: workload for name, workload in every.items() if name in names}
    about = machine()

    def keep(results: Results) -> None:
        write({"machine": about, "workloads": document(results)}, options.json)

    results = uvloop.run(measure(chosen, rounds=options.rounds, keep=keep))
    print(*on_terminal(of_workloads(document(results))), sep="\n")


def options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workload", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--all", action="store_true", help="also those that take minutes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of every workload (5)")
    parser.add_argument(
        "--events", type=int, default=50_000, help="events in a backlog of the outbox (50000)"
    )
    parser.add_argument("--messages", type=int, default=10_000, help="messages for the inbox (10000)")
    parser.add_argument("--rate", type=int, default=500, help="events a second at the steady rate (500)")
    parser.add_argument(
        "--rates", type=int, nargs="+", default=RATES, metavar="RATE", help="rates of the sweep (50 to 10000)"
    )
    parser.add_argument(
        "--backlogs", type=int, nargs="+", default=BACKLOGS, metavar="EVENTS", help="sizes (10000 to 5000000)"
    )
    parser.add_argument("--seconds", type=int, default=20, help="how long they come, from 2 (20)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds without any, before (10)")
    parser.add_argument(
        "--history", type=int, default=5_000_000, help="published events beside a drain and looks (5000000)"
    )
    parser.add_argument("--looks", type=int, default=15, help="how often each question is asked (15)")
    parser.add_argument(
        "--churn", type=int, default=1_800_000, help="events of the churn, --events at a time (1800000)"
    )
    parser.add_argument(
        "--memory", type=int, default=1_000_000, help="events between whose tenths memory is read (1000000)"
    )
    parser.add_argument(
        "--work", type=Path, default=WORK, help="where programs of others are installed (%(default)s)"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="file to write")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that all of it works")
    return parser


async def measure(chosen: Mapping[str, Workload], *, rounds: int, keep: Callable[[Results], None]) -> Results:
    """Run every workload once a round, so that a slow minute of the machine touches them all."""
    results: Results = {name: [] for name in chosen}
    progress = Progress(rounds * len(chosen))
    with tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-") as folder:
        async with open_stage(Path(folder)) as stage:
            for number in range(1, rounds + 1):
                for name, workload in chosen.items():
                    result = await workload(stage)
                    results[name].append(result)
                    progress.tell(f"round {number}, {name}: {result[WORKER].rate:,.0f}/s")
                keep(results)
    return results


if __name__ == "__main__":
    main()
