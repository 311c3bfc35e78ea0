"""The benchmarks still run, on a small scale; how fast is not judged here."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from /proc")
async def test_the_quick_round_measures_every_workload(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks", "--quick", "--json", str(file),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, errors.decode()
    workloads = json.loads(file.read_text())["workloads"]
    assert workloads.keys() == {"drain, no keys", "drain, 10 to a key", "inbox"}
    for name, results in workloads.items():
        assert name in output.decode()
        median = results["median"]
        assert (
            min(median["worker_rate"], *median["floor_rates"].values(), median["transactions_per_1000"]) > 0
        )
        assert median["cpu_seconds_per_100000"]["worker"] > 0
