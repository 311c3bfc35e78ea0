"""The README's commands of the data pipeline, on a machine that has no Java."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machines import programs_without

ROOT = Path(__file__).parents[2]
ONE_SESSION = ROOT / "tests" / "support" / "one_session.py"
EVENTS = 300


def commands() -> list[str]:
    """Return the pipeline's commands as the README has them, without comments."""
    section = (ROOT / "README.md").read_text().partition("## The data pipeline")[2].partition("\n## ")[0]
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL))
    lines = [line.partition(" -- ")[2] or line.partition("  #")[0] for line in blocks.splitlines() if line]
    return [line.strip() for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_run_on_the_traffic_of_dev(tmp_path: Path) -> None:
    """The first, which shows a report, is a process of its own; the others share a session."""
    first, *others = commands()
    shared = [command.replace("reconcile --lake lake", "reconcile --lake lake --json") for command in others]
    script = tmp_path / "commands"
    script.write_text(f"set -e\n{first}\n{shlex.join(['python', str(ONE_SESSION), *shared])}\n")

    ran = subprocess.run(
        [
            *(sys.executable, "-m", "sea_mq_worker", "dev", "--events", str(EVENTS)),
            *("--folder", tmp_path / "dev", "--", "sh", script),
        ],
        env={
            **os.environ,
            "PATH": programs_without("java", tmp_path / "programs"), "JAVA_HOME": "",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert len(others) == 4
    assert f"landed {EVENTS} messages" in ran.stdout
    assert "<title>" in (tmp_path / "report.html").read_text()
    verdicts, _ = json.JSONDecoder().raw_decode(ran.stdout[ran.stdout.index("{\n") :])
    assert [(hop["verdicts"].get("delivered"), hop["verdicts"].get("dead")) for hop in verdicts["hops"]] == [
        (EVENTS, None),
        (EVENTS - EVENTS // 50, EVENTS // 50),
    ]
