"""The worker's clock counts the time in which the machine was suspended."""

import subprocess
import sys

import pytest

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--time", "--boottime", "86400")
"""A process in which the time since the boot is a day ahead of the time in which the machine was awake."""
_READ = """
import time
from dataclasses import fields
from sea_mq_worker.wiring.context import WorkerContext
[clock] = [one.default for one in fields(WorkerContext) if one.name == "clock"]
print(clock() - time.clock_gettime(time.CLOCK_BOOTTIME))
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_NAMESPACE, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has time namespaces")
def test_the_time_of_a_suspended_machine_counts_against_leases() -> None:
    if _run("").returncode:
        pytest.skip("this user may not make a time namespace")
    result = _run(_READ)
    assert abs(float(result.stdout)) < 60, result.stderr
