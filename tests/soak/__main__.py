"""Test a deployment of this worker under random faults; the exit code is 0 only if every check holds."""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path

from tests.soak.bugs import BUGS
from tests.soak.run import soak


def options() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="duration of traffic and faults in seconds (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the plan of faults (%(default)s)")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    parser.add_argument("--folder", type=Path, help="folder for logs, which are kept")
    parser.add_argument(
        "--negative-control",
        choices=sorted(BUGS),
        default="",
        metavar="BUG",
        help="bug to plant: " + ", ".join(sorted(BUGS)),
    )
    return parser.parse_args()


def main(given: argparse.Namespace) -> int:
    """Run a soak and print its result; return 0 if all checks pass, otherwise 1."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # an interrupted soak leaves no process running
        signal.signal(number, signal.default_int_handler)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="sea-mq-soak-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    soaked = asyncio.run(
        soak(
            seed=given.seed,
            seconds=given.seconds,
            folder=folder,
            bug=given.negative_control,
        )
    )
    result = json.dumps(soaked.data(), indent=2)
    if given.json:
        given.json.write_text(result)
    sys.stdout.write(f"{result}\nlogs: {folder}\n")
    return 0 if soaked.passed else 1


if __name__ == "__main__":
    raise SystemExit(main(options()))
