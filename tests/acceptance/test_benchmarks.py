"""The benchmarks still run, on a small scale; how fast is not judged here."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks.conditions import CONDITIONS

ROOT = Path(__file__).parents[2]
OF_A_DRAIN = {"floor: database", "floor: broker, acknowledged", "floor: broker, batched"}
INBOXES = ("FastAPI", "200 in flight", "batches", "bare handler")
KEYS = ("no keys", "10 to a key")
FLOORS: dict[str, set[str]] = {
    **{f"drain, {keys}": OF_A_DRAIN for keys in KEYS},
    **{f"inbox, {kind}": {"floor: load generator"} for kind in INBOXES},
    **{f"workers, {keys}": {"2 workers", "4 workers"} for keys in KEYS},
    **{f"backlogs, {keys}": {"2,000 events"} for keys in KEYS},
    "drain, history": {"worker, no history"},
    "drain, conditions": set(CONDITIONS) - {"worker"},
    **{name: set() for name in ("steady rate", "steady rate sweep", "looks", "memory", "churn")},
}


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from /proc")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_quick_round_measures_every_workload(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    output = await run("benchmarks", "--all", "--quick", "--json", str(file))
    workloads = {name: found["median"] for name, found in json.loads(file.read_text())["workloads"].items()}
    assert workloads.keys() == FLOORS.keys()
    for name, programs in workloads.items():
        assert name.lower() in output.lower()
        assert programs.keys() == {"worker", *FLOORS[name]}
        assert all(found["rate"] > 0 for found in programs.values())
        worker = programs["worker"]
        assert worker["statements_per_1000"] > 0
        if name != "looks":  # these are the operator's, and change nothing
            assert min(worker["wal_bytes_each"], worker["peak_bytes"]) > 0
    assert workloads["churn"]["worker"]["more"]["table, MB, last fifth"] > 0
    assert workloads["memory"]["worker"]["more"]["worker after 5,000 events, MB"] > 0
    assert workloads["steady rate"]["worker"]["more"]["stored after COMMIT sent, p50 ms"] > 0


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_jobs_of_the_pipeline_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    output = await run("benchmarks.pipeline", "--events", "500", "--ids", "uuidv4", "--json", str(file))
    found = json.loads(file.read_text())["sizes"]["500"]["median"]
    assert list(found) == ["floor", "land", "reconcile", "report", "land, new messages"]
    for name, job in found.items():
        assert name in output
        assert min(job["seconds"], job["peak_bytes"], job["cpu_seconds"]["jvm"], job["spark_jobs"]) > 0


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), 580)
    assert process.returncode == 0, errors.decode()
    return output.decode()
