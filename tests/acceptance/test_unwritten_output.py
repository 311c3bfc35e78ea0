"""Output that its reader or its disk does not take ends a command with one line at most."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTHING = str(Path(__file__).parent)
HELP = ("outbox", "--help")
FULL = "the output cannot be written: No space left on device\n"


def run(*command: str, stdout: int) -> tuple[int, str]:
    """Run a command with this descriptor as its standard output; return its exit code and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "sea_mq_worker", *command],
        stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", [HELP, ("schemas", "check", NOTHING, NOTHING)])
def test_a_full_disk_is_named_in_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(*command, stdout=full.fileno()) == (1, FULL)


def test_a_reader_that_has_gone_is_no_news() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert run(*HELP, stdout=writer) == (1, "")
    os.close(writer)
