"""Output that a reader, a disk or an encoding does not take ends a command with one line at most."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTHING = str(Path(__file__).parent)
HELP = ("outbox", "--help")
FULL = "the output cannot be written: No space left on device\n"


def run(
    *command: str, stdout: int = subprocess.DEVNULL, stderr: int = subprocess.PIPE
) -> tuple[int, str | None]:
    """Run a command with this descriptor as its output; return its exit code and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "sea_mq_worker", *command],
        stdout=stdout, stderr=stderr, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", [HELP, ("schemas", "check", NOTHING, NOTHING)])
def test_a_full_disk_is_named_in_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(*command, stdout=full.fileno()) == (1, FULL)


@pytest.mark.parametrize("wrong", [("audit", "--limit", "many"), ("outbox", "replay")])
def test_an_error_that_a_full_disk_does_not_take_keeps_its_exit_code(wrong: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(*wrong, stderr=full.fileno()) == (2, None)


def test_a_reader_that_has_gone_is_no_news() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert run(*HELP, stdout=writer) == (1, "")
    os.close(writer)


def test_letters_that_the_encoding_does_not_have_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    for folder, schema in (("old", '{"properties": {"я": {}}}'), ("new", '{"properties": {}}')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.v1.json").write_text(schema)
    with (tmp_path / "output").open("wb") as output:
        folders = (str(tmp_path / "old"), str(tmp_path / "new"))
        assert run("schemas", "check", *folders, stdout=output.fileno()) == (1, "")
    assert (tmp_path / "output").read_text() == "a.v1: /properties/\\u044f is missing\n"
