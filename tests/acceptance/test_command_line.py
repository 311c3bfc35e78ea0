"""The usual options of a command line, and a settings file by option."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SEA_MQ_")}
    return subprocess.run(
        [sys.executable, "-m", "sea_mq_worker", *words],
        cwd=folder, env=own | variables, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("words", [("-h",), ("outbox", "list", "-h"), ("-V",)])
def test_short_options_for_help_and_version_work(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "outbox" in done.stdout or done.stdout.startswith("sea-mq-worker ")


@pytest.mark.parametrize("command", [(), ("run",), ("outbox", "list")])
def test_a_settings_file_may_be_an_option_before_the_command(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text("grace_seconds = 0.01")
    done = run(tmp_path, "--config", "a.toml", *command)
    assert (done.returncode, done.stderr) == (2, "SEA_MQ_GRACE_SECONDS: expected at least 0.1\n")
    if command:
        behind = run(tmp_path, *command, "--config", "a.toml")
        assert behind.returncode == 2
        assert "--config belongs before the command" in behind.stderr


def test_an_env_file_that_is_not_read_is_named_until_its_variables_are_there(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# ours\nexport SEA_MQ_CONTEXT=orders\nPORT=1\n")
    hint = "the file .env is not read; load it into the environment: set -a; . ./.env; set +a\n"
    assert run(tmp_path, "depth").stderr.startswith(hint)
    assert hint not in run(tmp_path, "depth", SEA_MQ_CONTEXT="orders").stderr
    (tmp_path / ".env").write_text("PORT=1\n")
    assert hint not in run(tmp_path, "depth").stderr
