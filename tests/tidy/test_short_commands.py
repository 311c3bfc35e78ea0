"""The Makefile's targets: what they run exists, and installing and testing are the README's own line."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ("install", "test", "quick", "check", "dev")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def commands(target: str) -> list[str]:
    make = ["make", "--no-print-directory", "--dry-run", target]
    return subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_targets_are_the_ones_that_contributors_read_of() -> None:
    [phony] = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tuple(phony.split()) == TARGETS
    assert set(re.findall(r"`make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text())) == set(TARGETS)


def test_install_and_test_are_the_readmes_line() -> None:
    [line] = re.findall(r"<!-- test-command -->\n```sh\n(.+)\n```", (ROOT / "README.md").read_text())
    assert commands("install") + commands("test") == line.split(" && ")


@pytest.mark.parametrize("target", TARGETS)
def test_all_that_a_target_runs_exists(target: str) -> None:
    lines = commands(target)
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        in_venv = program.startswith(".venv/bin/")
        assert shutil.which(program.replace(".venv", sys.prefix, 1) if in_venv else program), line
        if arguments[:1] == ["-m"]:
            assert find_spec(arguments[1]), line
        for path in (argument for argument in arguments if argument.startswith(("tests/", "requirements/"))):
            assert (ROOT / path).exists(), line
