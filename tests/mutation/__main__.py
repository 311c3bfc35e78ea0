"""``python -m tests.mutation``: plant mistakes, one after the other, and see that the named tests notice.

Each mutant of mutants.toml is tried in a copy of the tree. It is killed if the test that is named for it
fails, and survives if that test passes; exit code 1 if one survives. First the same tests run on the code as
it is, where all have to pass.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.mutants import LIST, ROOT, Mutant, load, problems
from tests.support.documents import files

_PASSED, _FAILED = 0, 1
"""pytest's exit codes; every other one means that the tests did not run."""
_ALONE = ("-n", "0", "-p", "no:cacheprovider")
_FAILURE = re.compile(r"^FAILED \S*/(.+)$", re.MULTILINE)


class DidNotRunError(Exception):
    """The tests neither passed nor failed; the text is the end of what pytest printed."""


def main() -> None:
    """Try the chosen mutants and tell which survive."""
    options = _options()
    mutants = [mutant for mutant in load(options.list) if re.search(options.only, mutant.name)]
    if found := problems(mutants) or ([] if mutants else [f"no mutant's name matches {options.only!r}"]):
        sys.exit("\n".join(found))
    with _copies(options.processes) as copies:
        if failure := _failure(copies[0], sorted({mutant.test() for mutant in mutants})):
            sys.exit(f"a named test fails on the code as it is; mend that first: {failure}")
        survived = _try_all(mutants, copies)
    print(f"{len(mutants)} mutants, {len(mutants) - survived} killed, {survived} survived")
    sys.exit(survived > 0)


def _try_all(mutants: list[Mutant], copies: list[Path]) -> int:
    """Print a line for each mutant; return how many survived."""
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    planted = {mutant: mutant.planted() for mutant in mutants}

    def attempt(mutant: Mutant) -> bool:
        copy = free.get()
        began = time.monotonic()
        try:
            with _planted(*planted[mutant], copy):
                failure = _failure(copy, [mutant.test()])
        finally:
            free.put(copy)
        fate, by = ("killed", failure) if failure else ("SURVIVED", mutant.test())
        print(f"{fate:8} {mutant.name}: {by} ({time.monotonic() - began:.0f} s)", flush=True)
        return not failure

    with ThreadPoolExecutor(len(copies)) as pool:
        return sum(pool.map(attempt, mutants))


@contextmanager
def _planted(name: Path, mistaken: str, copy: Path) -> Iterator[None]:
    """Have the mistake in the copy for the length of a block."""
    path = copy / name
    original, written_at = path.read_text(), path.stat().st_mtime
    path.write_text(mistaken)
    # What Python has compiled is told apart by the second of its source; no two of them share one.
    os.utime(path, (written_at + 1, written_at + 1))
    try:
        yield
    finally:
        path.write_text(original)
        os.utime(path, (written_at + 2, written_at + 2))


def _failure(copy: Path, tests: list[str]) -> str:
    """Run the tests in the copy; return the failure of one, or an empty text where all pass.

    Raises:
        DidNotRunError: they neither passed nor failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", *_ALONE, *tests],
        cwd=copy,
        check=False,
        env=os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "300"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode == _PASSED:
        return ""
    failed = _FAILURE.search(done.stdout)
    if done.returncode != _FAILED or failed is None:
        raise DidNotRunError(done.stdout[-2000:])
    return failed[1]


@contextmanager
def _copies(count: int) -> Iterator[list[Path]]:
    """Provide copies of the files that git knows or would add."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-mutants-") as folder:
        copies = [Path(folder, str(number)) for number in range(count)]
        for copy in copies:
            for name in files():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        yield copies


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name matches this")
    parser.add_argument("--list", type=Path, default=LIST, help="the mutants (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="mutants tried side by side (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
