"""The runner tells a mistake that a test notices from one that none does, and one that has no place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import ROOT, Mutant

TEST = "test_every_mutant_applies_to_the_code_and_names_a_test"
BACKOFF = "test_backoff_doubles_up_to_its_cap_with_full_jitter"
JITTER = """
[{name}]
code = "self.random() * min(A, B)"
becomes = "{becomes}"
killed_by = "{killed_by}"
"""
NOTICED = JITTER.format(killed_by=BACKOFF, name='"there is no jitter"', becomes="min(A, B)")
UNNOTICED = JITTER.format(
    killed_by=BACKOFF, name='"the same in other words"', becomes="min(A, B) * self.random()"
)


@pytest.mark.slow
def test_a_mutant_that_its_test_lets_pass_is_a_failure(tmp_path: Path) -> None:
    mutants = tmp_path / "mutants.toml"
    mutants.write_text(NOTICED + UNNOTICED)
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", "--list", str(mutants), "--processes", "1"],
        cwd=ROOT,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert f"killed   there is no jitter: test_retry.py::{BACKOFF}" in done.stdout
    assert f"SURVIVED the same in other words: tests/unit/test_retry.py::{BACKOFF}" in done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "2 mutants, 1 killed, 1 survived")


def mutant(code: str, becomes: str, *, killed_by: str = TEST, sql: str = "", function: str = "") -> Mutant:
    return Mutant(name="it", code=code, becomes=becomes, killed_by=killed_by, sql=sql, function=function)


@pytest.mark.parametrize(
    ("stale", "why"),
    [
        (mutant("self.chance() * min(A, B)", "B"), "there are 0, not one, of code"),
        (mutant("A + 1", "A"), "not one, of code 'A + 1' in all modules"),
        (mutant("A + 1", "A", function="no_such"), "there are 0, not one, of code 'A + 1' in no_such"),
        (mutant("A()", "A()", function="Backoff.delay_seconds"), "what its code becomes is the same"),
        (mutant("true", "false", sql="no_such"), "there are 0, not one, of code 'true' in statement no_such"),
        (mutant("$A::float8", "60.0", sql="inbox.extend"), "PostgreSQL would refuse it"),
        (mutant("A", "B", killed_by="test_no_such"), "there are 0, not one, of test test_no_such"),
    ],
)
def test_a_mutant_that_does_not_follow_the_code_is_named(stale: Mutant, why: str) -> None:
    assert why in (stale.problem() or "")


def test_a_mutant_of_a_statement_is_planted_in_that_one_alone() -> None:
    path, after = mutant("i.locked_by = held.token", "held.token IS NOT NULL", sql="extend").planted()
    before = (ROOT / path).read_text()
    assert before.count("i.locked_by = held.token") - after.count("i.locked_by = held.token") == 1
    assert after.index("held.token IS NOT NULL") > after.index("-- name: extend")
