"""Java takes Spark's classes from an archive, and works without one that does not fit."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from sea_mq_worker.pipeline.java import spark_home
from tests.support.documents import commands
from tests.support.processes import programs_without

ONE_JOB = """
from sea_mq_worker.pipeline.session import ARCHIVE, spark_session

with spark_session("test", master="local[1]") as spark:
    print(ARCHIVE.exists(), spark.range(3).count())
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python in an environment of its own that has all packages of this one."""
    venv.create(tmp_path / "venv")
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "all.pth").write_text("\n".join(path for path in sys.path if path))
    own = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    own |= {"PATH": programs_without("java", tmp_path / "programs"), "JAVA_HOME": ""}  # as in the image

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [tmp_path / "venv" / "bin" / "python", *arguments],
            env=own | environment,
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_a_start_takes_its_classes_from_the_archive_that_the_command_of_the_document_writes(run: Run) -> None:
    [command] = commands("docs/how-to/pipeline.md", "A faster start")
    prepared = run(*command.text.split()[1:])
    assert prepared.stdout.startswith("archive: "), prepared.stderr

    ran = run("-c", ONE_JOB, SPARK_SUBMIT_OPTS="-Xshare:on")  # Java would end if the archive did not fit

    assert (ran.stdout, ran.stderr) == ("True 3\n", "")


def test_an_archive_that_does_not_fit_is_ignored(run: Run, tmp_path: Path) -> None:
    archive = tmp_path / "venv" / "share" / "sea_mq_worker" / "spark-classes.jsa"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"of another version" * 10_000)
    archive.with_suffix(".jars").write_text(f"{spark_home() / 'jars' / 'of-another-version.jar'}")

    ran = run("-c", ONE_JOB)

    assert (ran.stdout, ran.stderr) == ("True 3\n", "")
