"""``python -m benchmarks``: measure the worker beside plain loops, on servers of its own."""

import argparse
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.report import document, table
from benchmarks.stage import Run, open_stage
from benchmarks.workloads import Measured, drain, inbox

Workload = Callable[[Run], Awaitable[Measured]]


def main() -> None:
    """Read the options, run, write the JSON file and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each of every workload (3)")
    parser.add_argument(
        "--events", type=int, default=50_000, help="events in a backlog of the outbox (50000)"
    )
    parser.add_argument("--messages", type=int, default=10_000, help="messages for the inbox (10000)")
    parser.add_argument(
        "--floor", type=int, default=5_000, help="of them, how many the plain loops take (5000)"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="file to write")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that all of it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.events, options.messages, options.floor = 1, 1_000, 200, 100
    rounds = uvloop.run(
        measure(_workloads(options.events, options.messages, options.floor), rounds=options.rounds)
    )
    report = document(rounds)
    options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(table(report))


def _workloads(events: int, messages: int, floor: int) -> dict[str, Workload]:
    return {
        "drain, no keys": lambda run: drain(run, count=events, floor_count=floor, per_key=0),
        "drain, 10 to a key": lambda run: drain(run, count=events, floor_count=floor, per_key=10),
        "inbox": lambda run: inbox(run, count=messages, floor_count=floor),
    }


async def measure(workloads: dict[str, Workload], *, rounds: int) -> dict[str, list[Measured]]:
    """Run every workload once a round, so that a slow minute of the machine touches them all."""
    results: dict[str, list[Measured]] = {name: [] for name in workloads}
    with tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-") as folder:
        async with open_stage(Path(folder)) as stage:
            for number in range(rounds):
                for name, workload in workloads.items():
                    async with stage.run() as run:
                        result = await workload(run)
                    results[name].append(result)
                    print(f"round {number + 1}, {name}: {result.worker_rate:,.0f}/s", file=sys.stderr)
    return results


if __name__ == "__main__":
    main()
