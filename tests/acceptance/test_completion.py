"""Shells complete commands and options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("sea-mq-worker")


def completed(words: str) -> set[str]:
    """Ask as bash does, for the last of these words."""
    asked = {"COMP_WORDS": f"sea-mq-worker {words}", "COMP_CWORD": str(words.count(" ") + 1)}
    env = os.environ | asked | {"_SEA_MQ_WORKER_COMPLETE": "complete_bash"}
    found = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=60)
    return set(found.stdout.split())


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
    assert completed(words) >= offered
