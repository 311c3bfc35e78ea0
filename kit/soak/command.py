"""The command ``python -m kit soak``; its exit code is the verdict."""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path

from kit.soak.bugs import BUGS
from kit.soak.run import DRAIN_SECONDS, soak
from kit.soak.schedule import KINDS
from kit.soak.summary import data, page

HELP = "test a deployment of this worker under random faults"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--seconds", type=float, default=600, help="duration of traffic and faults in seconds (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the plan of faults (%(default)s)")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    parser.add_argument("--folder", type=Path, help="folder for logs and the ledger, which are kept")
    parser.add_argument(
        "--negative-control",
        choices=sorted(BUGS),
        default="",
        metavar="BUG",
        help="bug to plant: " + ", ".join(sorted(BUGS)),
    )
    parser.add_argument(
        "--only",
        default="",
        help="comma-separated kinds of faults (default: all): " + ", ".join(k.name for k in KINDS),
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=DRAIN_SECONDS,
        help="limit in seconds to settle everything after the last fault",
    )
    parser.set_defaults(command=main)


def main(options: argparse.Namespace) -> int:
    """Run a soak and print its result; return 0 if all checks pass, otherwise 1."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # an interrupted soak leaves no process running
        signal.signal(number, signal.default_int_handler)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sea-mq-soak-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    soaked = asyncio.run(
        soak(
            seed=options.seed,
            seconds=options.seconds,
            folder=folder,
            bug=options.negative_control,
            only=frozenset(filter(None, options.only.split(","))),
            drain_seconds=options.drain,
        )
    )
    result = data(soaked)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    sys.stdout.write(f"{page(result)}\nlogs       {folder}\n")
    return 0 if soaked.passed else 1
