"""The kit tells a relay that keeps its promises from one that does not."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


async def judged(relay: str, folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the kit; return its exit code and what it wrote for programs."""
    report = folder / "report.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kit", "run", "--relay", f"kit/relays/{relay}.toml", "--json", str(report)),
        *options,
        cwd=ROOT,
        env=os.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    written, _ = await process.communicate()
    assert report.exists(), written.decode()
    assert process.returncode is not None
    return process.returncode, json.loads(report.read_text())


def broken(report: dict[str, Any]) -> set[str]:
    """Return the guarantees that were not kept."""
    return {verdict["guarantee"] for verdict in report["guarantees"] if verdict["kept"] is False}


@pytest.mark.crash
@pytest.mark.slow
async def test_this_worker_keeps_what_it_promises(tmp_path: Path) -> None:
    faults = "kill,kill-unanswered,term,poison"
    code, report = await judged(
        "sea_mq_worker", tmp_path, "--faults", faults, "--events", "40", "--kills", "2"
    )
    assert (code, broken(report)) == (0, set())
    assert set(report["faults"]) == set(faults.split(","))


@pytest.mark.crash
async def test_a_relay_that_marks_before_it_sends_is_found_guilty_of_loss(tmp_path: Path) -> None:
    code, report = await judged("marks_first", tmp_path, "--faults", "kill-unheard", "--events", "30")
    assert code == 1
    assert "no-loss" in broken(report)
    assert report["faults"]["kill-unheard"]["lost"]
