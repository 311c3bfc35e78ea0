"""``python -m tests.versions``: run tests on other versions of servers, packages or Python.

Linux on x86-64; servers need pip, Go and npm. Says what cannot be had, and fails unless everything ran and
passed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.versions.servers import (
    NATS,
    POSTGRES,
    UnavailableError,
    fetch_lowest,
    fetch_nats,
    fetch_postgres,
    fetch_python,
    fetch_spark,
    present_pythons,
)

_SUITES = ("tests/contract", "tests/integration")
_PYTHON_SUITES = ("tests/unit", *_SUITES)
_SPARK_SUITES = ("tests/pipeline",)
_LOWEST_SUITES = (
    "tests/unit",
    "tests/contract",
    "tests/acceptance/test_command_line.py",
    "tests/pipeline/test_land.py",
)
_OF_OTHERS = ("-W", "default::DeprecationWarning")
"""Old packages use what the newest ones that they depend on announce to drop."""
_CLOSING = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|error).*?)(?: =+)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one pair of servers, one Python or one PySpark."""

    versions: str
    passed: bool
    text: str


def main() -> None:
    """Run the tests on each version, and print a line for each."""
    options = _options()
    all_passed = True
    if options.spark:
        outcomes = (run_spark(one, options.cache, options.tests or _SPARK_SUITES) for one in options.spark)
    elif options.lowest:
        outcomes = (run_lowest(options.cache, options.tests or _LOWEST_SUITES) for _ in range(1))
    elif options.pythons is not None:
        wanted = options.pythons or present_pythons()
        outcomes = (run_python(one, options.cache, options.tests or _PYTHON_SUITES) for one in wanted)
    else:
        outcomes = (run(pair, options.cache, options.tests or _SUITES) for pair in options.pairs)
    for outcome in outcomes:
        print(f"{outcome.versions} {outcome.text}", flush=True)
        all_passed &= outcome.passed
    sys.exit(not all_passed)


def run_spark(version: str, cache: Path, tests: Sequence[str]) -> Outcome:
    """Fetch a PySpark and run the tests on it."""
    return run_on(f"PySpark {version}", lambda: ([fetch_spark(version, cache)], sys.executable), tests)


def run_lowest(cache: Path, tests: Sequence[str]) -> Outcome:
    """Install the lowest allowed packages and run the tests on them."""
    return run_on("lowest packages", lambda: ([fetch_lowest(cache)], sys.executable), [*_OF_OTHERS, *tests])


def run_python(version: str, cache: Path, tests: Sequence[str]) -> Outcome:
    """Install everything locked for another interpreter and run the tests on it."""
    return run_on(
        f"Python {version}", lambda: ([], str(fetch_python(version, cache) / "bin" / "python")), tests
    )


def run(pair: str, cache: Path, tests: Sequence[str]) -> Outcome:
    """Fetch both servers and run the tests on them."""
    nats, _, postgres = pair.partition("/")
    versions = f"nats-server {_release(NATS, nats):8} PostgreSQL {_release(POSTGRES, postgres):6}"
    return run_on(
        versions,
        lambda: ([fetch_nats(NATS[nats], cache), fetch_postgres(postgres, cache)], sys.executable),
        tests,
    )


def run_on(versions: str, fetch: Callable[[], tuple[Sequence[Path], str]], tests: Sequence[str]) -> Outcome:
    """Run the tests with the folders of packages and the interpreter that are fetched."""
    try:
        folders, python = fetch()
    except UnavailableError as error:
        return Outcome(versions, passed=False, text=f"cannot be had: {error}")
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "--tb=native", "-p", "tests.versions.plugin", *tests],
        check=False,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout)
    closing = _CLOSING.findall(done.stdout)[-1:] or [f"exit code {done.returncode}"]
    text = f"{closing[0]} ({time.monotonic() - began:.0f} s)"
    return Outcome(versions, passed=done.returncode == 0, text=text)


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
    parser.add_argument(
        "--spark",
        type=lambda text: text.split(","),
        help="versions of PySpark, comma-separated: run the pipeline's tests on each (4.0,4.3)",
    )
    parser.add_argument(
        "--lowest",
        action="store_true",
        help="run a selection on the lowest packages that pyproject.toml allows",
    )
    parser.add_argument(
        "--pythons",
        type=lambda text: text.split(","),
        nargs="?",
        const=[],
        help="versions of Python, comma-separated (each that this machine has): run the unit tests as well",
    )
    parser.add_argument("tests", nargs="*", help=f"what to run ({' '.join((*_SUITES, *_SPARK_SUITES))})")
    return parser.parse_args()


if __name__ == "__main__":
    main()
