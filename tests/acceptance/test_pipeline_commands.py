"""The README's commands of the data pipeline, on a machine that has no Java."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machines import programs_without

ROOT = Path(__file__).parents[2]
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
    script = tmp_path / "commands"
    lines = "\n".join(["set -e", *commands()])
    script.write_text(lines.replace("reconcile --lake lake", "reconcile --lake lake --json > verdicts.json"))

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
    assert len(commands()) == 5
    assert f"landed {EVENTS} messages" in ran.stdout
    assert "<title>" in (tmp_path / "report.html").read_text()
    hops = json.loads((tmp_path / "verdicts.json").read_text())["hops"]
    assert [(hop["verdicts"].get("delivered"), hop["verdicts"].get("dead")) for hop in hops] == [
        (EVENTS, None),
        (EVENTS - EVENTS // 50, EVENTS // 50),
    ]
