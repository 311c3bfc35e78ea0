"""``python -m tests.soak``: run a soak and tell what it came to; the exit code is the verdict."""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path

from tests.soak.plan import KINDS
from tests.soak.planted import BUGS
from tests.soak.report import data, page
from tests.soak.run import DRAIN_SECONDS, soak


def main() -> int:
    """Return 0 where every check holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long traffic and faults last")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same plan of faults")
    parser.add_argument("--json", type=Path, help="write the result there too")
    parser.add_argument("--folder", type=Path, help="for logs and the ledger; kept")
    parser.add_argument(
        "--negative-control", choices=sorted(BUGS), default="", metavar="BUG", help=", ".join(sorted(BUGS))
    )
    parser.add_argument(
        "--only", default="", help="kinds of faults, separated by commas: " + ", ".join(k.name for k in KINDS)
    )
    parser.add_argument(
        "--drain", type=float, default=DRAIN_SECONDS, help="seconds to finish after the last fault"
    )
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.default_int_handler
        )  # nothing is left running behind a soak that is ended
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="sea-mq-soak-logs-"))
    only = frozenset(filter(None, given.only.split(",")))
    soaked = asyncio.run(
        soak(
            seed=given.seed,
            seconds=given.seconds,
            folder=folder,
            bug=given.negative_control,
            only=only,
            drain_seconds=given.drain,
        )
    )
    result = data(soaked)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2))
    sys.stdout.write(f"{page(result)}\nlogs       {folder}\n")
    return 0 if soaked.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
