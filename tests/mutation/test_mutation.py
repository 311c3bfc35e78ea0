"""The runner tells a mistake that a test notices from one that none does."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation.mutants import ROOT, Mutant

RETRY = """
file = "sea_mq_worker/domain/retry.py"
killed_by = "tests/unit/test_retry.py::test_backoff_has_full_jitter"
"""
NOTICED = f"""
[[mutant]]
name = "there is no jitter"
{RETRY}
text = "return float(self.random() * min(self.cap_seconds, bound))"
replacement = "return min(self.cap_seconds, bound)"
"""
UNNOTICED = f"""
[[mutant]]
name = "a delay has no cap"
{RETRY}
text = "return float(self.random() * min(self.cap_seconds, bound))"
replacement = "return float(self.random() * bound)"
"""
STALE = UNNOTICED.replace("self.random()", "self.chance()")


def mutation(folder: Path, text: str) -> tuple[int, str]:
    """Run it on a list of its own; return the exit code and what it prints."""
    mutants = folder / "mutants.toml"
    mutants.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", "--list", str(mutants), "--processes", "1"],
        cwd=ROOT,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_mutant_that_its_test_lets_pass_is_a_failure(tmp_path: Path) -> None:
    code, reported = mutation(tmp_path, NOTICED + UNNOTICED)
    assert "killed   there is no jitter: test_retry.py::test_backoff_has_full_jitter" in reported
    assert "SURVIVED a delay has no cap: tests/unit/test_retry.py::test_backoff_has_full_jitter" in reported
    assert (code, reported.splitlines()[-1]) == (1, "2 mutants, 1 killed, 1 survived")


def test_a_mutant_that_does_not_follow_the_code_is_named(tmp_path: Path) -> None:
    code, reported = mutation(tmp_path, STALE)
    assert code == 1
    assert "a delay has no cap: its text occurs 0 times in sea_mq_worker/domain/retry.py" in reported


def test_a_mutant_of_a_statement_is_planted_in_that_one_alone_and_keeps_its_parameters() -> None:
    fence = Mutant(
        name="any token extends a lease",
        file="sql/queries/inbox.sql",
        statement="extend",
        text="i.locked_by = held.token",
        replacement="held.token IS NOT NULL",
        killed_by="tests/tidy/test_mutants.py::test_every_mutant_applies_to_the_code_and_names_a_test",
    )
    assert fence.problem() is None
    before, after = (ROOT / fence.file).read_text(), fence.applied_to(ROOT)
    assert before.count(fence.text) - after.count(fence.text) == 1
    assert after.index(fence.replacement) > after.index("-- name: extend")
    length = replace(fence, text="$3::float8", replacement="60.0")
    assert length.problem() == (
        "any token extends a lease: PostgreSQL would refuse it: keep the parameters of extend"
    )
