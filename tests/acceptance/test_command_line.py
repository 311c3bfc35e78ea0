"""The usual ways of a command line: help, a settings file, completion, and output that nobody takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PIPE = subprocess.PIPE
PROGRAM = Path(sys.executable).with_name("sea-mq-worker")
NOTHING = str(Path(__file__).parent)
HELP = ("outbox", "--help")
FULL = "the output cannot be written: No space left on device\n"


def run(
    *words: str, folder: Path | None = None, out: int = _PIPE, err: int = _PIPE, **env: str
) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SEA_MQ_")}
    return subprocess.run(
        [sys.executable, "-m", "sea_mq_worker", *words],
        cwd=folder, env=own | env, stdout=out, stderr=err, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("words", [("-h",), ("outbox", "list", "-h"), ("-V",)])
def test_short_options_for_help_and_version_work(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "outbox" in done.stdout or done.stdout.startswith("sea-mq-worker ")


@pytest.mark.parametrize("command", [(), ("run",), ("outbox", "list")])
def test_a_settings_file_may_be_an_option_before_the_command(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text("grace_seconds = 0.01")
    done = run("--config", "a.toml", *command, folder=tmp_path)
    assert (done.returncode, done.stderr) == (2, "SEA_MQ_GRACE_SECONDS: expected at least 0.1\n")
    if command:
        behind = run(*command, "--config", "a.toml", folder=tmp_path)
        assert behind.returncode == 2
        assert "--config belongs before the command" in behind.stderr


def test_an_env_file_that_is_not_read_is_named_until_its_variables_are_there(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# ours\nexport SEA_MQ_CONTEXT=orders\nPORT=1\n")
    hint = "the file .env is not read; load it into the environment: set -a; . ./.env; set +a\n"
    assert run("depth", folder=tmp_path).stderr.startswith(hint)
    assert hint not in run("depth", folder=tmp_path, SEA_MQ_CONTEXT="orders").stderr
    (tmp_path / ".env").write_text("PORT=1\n")
    assert hint not in run("depth", folder=tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("", {"where", "depth", "audit", "outbox", "inbox", "dlq"}),
        ("outbox ", {"list", "summary", "show", "replay", "mark-dead"}),
        ("dlq redrive --al", {"--all"}),
        ("outbox list --state DE", {"DEAD"}),
    ],
)
def test_bash_completes_commands_options_and_values(words: str, offered: set[str]) -> None:
    asked = {"COMP_WORDS": f"sea-mq-worker {words}", "COMP_CWORD": str(words.count(" ") + 1)}
    env = os.environ | asked | {"_SEA_MQ_WORKER_COMPLETE": "complete_bash"}
    found = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert set(found.stdout.split()) >= offered


# --- what a disk, a reader or an encoding does not take ends a command with one line at most


@pytest.mark.parametrize("command", [HELP, ("schemas", "check", NOTHING, NOTHING)])
def test_a_full_disk_is_named_in_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(*command, out=full.fileno())
    assert (done.returncode, done.stderr) == (1, FULL)


@pytest.mark.parametrize("wrong", [("audit", "--limit", "many"), ("outbox", "replay")])
def test_an_error_that_a_full_disk_does_not_take_keeps_its_exit_code(wrong: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(*wrong, err=full.fileno()).returncode == 2


def test_a_reader_that_has_gone_is_no_news() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*HELP, out=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_letters_that_the_encoding_does_not_have_are_escaped(tmp_path: Path) -> None:
    for folder, schema in (("old", '{"properties": {"я": {}}}'), ("new", '{"properties": {}}')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.v1.json").write_text(schema)
    with (tmp_path / "output").open("wb") as output:
        done = run(
            "schemas", "check", "old", "new", folder=tmp_path, out=output.fileno(), PYTHONIOENCODING="latin-1"
        )
    assert (done.returncode, done.stderr) == (1, "")
    assert (tmp_path / "output").read_text() == "a.v1: /properties/\\u044f is missing\n"
