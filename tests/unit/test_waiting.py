"""Waits: the worker's clock counts the time in which the machine was suspended; the tests' own deadline."""

import subprocess
import sys

import pytest

from tests.support.waiting import eventually

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--time", "--boottime", "86400")
"""A process in which the time since the boot is a day ahead of the time in which the machine was awake."""
_READ = """
import time
from dataclasses import fields
from sea_mq_worker.parts import Parts
[clock] = [one.default for one in fields(Parts) if one.name == "clock"]
print(clock() - time.clock_gettime(time.CLOCK_BOOTTIME))
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [*_NAMESPACE, sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has time namespaces")
def test_the_time_of_a_suspended_machine_counts_against_leases() -> None:
    if run("").returncode:
        pytest.skip("this user may not make a time namespace")
    result = run(_READ)
    assert abs(float(result.stdout)) < 60, result.stderr


async def test_fails_at_the_deadline_with_what_was_expected_and_seen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.05 s: three rows \(last answer: \[\]\)"):
        await eventually(list, within=0.05, what="three rows")
