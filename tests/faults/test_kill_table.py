"""The time until work continues after a worker is killed under load, and the absence of other effects."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.report import at_share
from benchmarks.takeover import CONSUMER, SETTINGS, WAYS, kill_workers
from tests.support.site import SiteWith

ROOT = Path(__file__).parents[2]
GOAL_SECONDS = 2.0


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_fifty_kills_each_way_cost_two_seconds_each_and_nothing_else(tmp_path: Path) -> None:
    """The benchmark's exit code tells whether anything was lost, doubled or out of order."""
    file = tmp_path / "takeover.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.takeover", "--json", str(file)), cwd=ROOT
    )
    assert await process.wait() == 0
    ways = json.loads(file.read_text())["ways"]
    assert ways.keys() == WAYS.keys()
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert all(
            at_share(seconds, 0.99) < GOAL_SECONDS
            for kills in ways.values()
            for seconds in kills["seconds"].values()
        )


@pytest.mark.clause("lifecycle-23", "lifecycle-29", "POL-047-003")
@pytest.mark.fault("P06")
@pytest.mark.fault("N07")
async def test_work_of_killed_workers_moves_on_long_before_its_leases_end(site_with: SiteWith) -> None:
    async with site_with(consumer=CONSUMER, **SETTINGS) as made:
        kills = await kill_workers(made, 2, standby=True)
        await made.audit()
    assert kills.harmless
    assert len(kills.seconds["first event of any worker"]) == 2
