"""A session keeps the properties that others set, and deletes its files however it ends."""

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from sea_mq_worker.errors import BrokerUnavailableError
from sea_mq_worker.pipeline.errors import cause, translated
from sea_mq_worker.pipeline.session import described, job_session, temporary_folder
from sea_mq_worker.pipeline.stage_progress import stage_progress
from tests.pipeline.landing import descriptions
from tests.support.waiting import eventually

PROPERTIES = """
import json
import threading
from sea_mq_worker.pipeline.session import spark_session

with spark_session("mine") as spark:
    spark.range(1).collect()
    names = ("app.name", "driver.defaultJavaOptions", "master", "sql.shuffle.partitions", "ui.enabled",
             "sql.session.timeZone")
    print(json.dumps({f"spark.{name}": spark.conf.get(f"spark.{name}") for name in names}))
for thread in threading.enumerate():
    assert thread is threading.main_thread() or thread.join(30) or not thread.is_alive(), thread
"""
UNUSED = "postgresql://nobody@127.0.0.1:1/none"
BY_JAVA = """An error occurred while calling o368.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error.  SQLSTATE: KD001
Caused by: java.lang.RuntimeException: file:/lake/part-1.parquet is not a Parquet file (length is too low: 7)
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:599)
"""
BY_PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

sea_mq_worker.pipeline.errors.PipelineError: /lake/bronze cannot be written: [Errno 28] No space left
 SQLSTATE: 38000
"""


def test_javas_files_are_in_the_folder_that_goes_with_the_session(spark: SparkSession) -> None:
    assert spark._jvm
    file = Path(spark._jvm.java.io.File.createTempFile("any", None).getPath())
    assert file.parent.parent == Path(tempfile.gettempdir())
    assert file.parent.name.startswith("sea_mq_worker-spark-")


def test_folders_of_killed_sessions_are_deleted_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ("abandoned", "in-use", "young")
    abandoned, in_use, young = (tmp_path / f"sea_mq_worker-spark-{name}" for name in names)
    other = tmp_path / "of-another-program"
    for folder in (abandoned, in_use, young, other):
        folder.mkdir()
    with (in_use / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (abandoned, in_use, other):
            os.utime(folder, (0, 0))
        with temporary_folder() as own:
            assert set(tmp_path.iterdir()) == {in_use, young, other, own}
    assert not own.exists()


def test_a_start_prints_nothing_and_keeps_properties_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 400\nspark.driver.defaultJavaOptions -Dmine=1\nspark.master local[1]\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    ran = subprocess.run(
        [sys.executable, "-c", PROPERTIES],
        env=environment | {"SPARK_CONF_DIR": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {
        "spark.app.name": "mine",
        "spark.driver.defaultJavaOptions": "-Dmine=1",
        "spark.master": "local[1]",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "400",
        "spark.ui.enabled": "false",
    }


@pytest.mark.parametrize(
    ("command", "options", "compilers"),
    [("reconcile", "", "1"), ("reconcile", "-XX:TieredStopAtLevel=4", "4"), ("report", "", "4")],
)
def test_java_compiles_once_for_reconcile_alone_unless_options_of_the_user_differ(
    command: str, options: str, compilers: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    ran = subprocess.run(
        [sys.executable, "-m", "sea_mq_worker", "pipeline", command, "--master", "refused"],
        env=environment
        | {"SPARK_SUBMIT_OPTS": f"-XX:+PrintFlagsFinal {options}", "SEA_MQ_NATS_URL": "nats://127.0.0.1:1"}
        | {"SEA_MQ_DATABASE_URL": UNUSED},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.search(rf"TieredStopAtLevel += {compilers} ", ran.stdout), ran.stdout[-1000:] + ran.stderr


def test_a_given_session_keeps_its_properties_beside_the_session_of_the_jobs(spark: SparkSession) -> None:
    own = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}
    given = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in (own | {"spark.sql.shuffle.partitions": "5"}).items():
        given.conf.set(name, value)
    jobs = job_session(given)
    assert {name: given.conf.get(name) for name in own} == own
    assert [jobs.conf.get(name) for name in own] == ["UTC", "true"]
    assert jobs.conf.get("spark.sql.shuffle.partitions") == "5"
    assert job_session(jobs) is jobs


def test_a_long_stage_is_reported_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    reports: list[str] = []
    reported = tmp_path / "reported"

    def report(text: str) -> None:
        reports.append(text)
        reported.touch()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not reported.exists():
            time.sleep(0.01)
        yield from batches

    with stage_progress(spark, report, seconds=0.05):
        assert spark.range(4, numPartitions=2).mapInArrow(wait, "id bigint").count() == 4
    assert re.fullmatch(r"spark: stage \d+: [01] of 2 tasks", reports[0])


def test_jobs_are_described_inside_the_block_alone(spark: SparkSession) -> None:
    with described(spark, "outer"):
        spark.range(1).collect()
        with described(spark, "inner, of two"):
            spark.range(2).collect()
        spark.range(3).collect()
    spark.range(4).collect()
    assert descriptions(spark)[:4] == ["None", "Some(outer)", "Some(inner, of two)", "Some(outer)"]


@pytest.mark.crash
async def test_a_command_that_is_ended_as_java_starts_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = started(tmp_path, temporary)
    await eventually(lambda: any(temporary.glob("*/log4j2.properties")), within=60)
    process.terminate()

    assert process.wait(timeout=120) == 143
    assert list(temporary.iterdir()) == []
    await eventually(lambda: is_gone(process.pid), within=60)


def started(folder: Path, temporary: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "sea_mq_worker", "pipeline", "report", "--master", "local[1]"]
    environment = {**os.environ, "TMPDIR": str(temporary), "SEA_MQ_DATABASE_URL": UNUSED}
    return subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True)


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        (BY_JAVA, "java.lang.RuntimeException",
         "file:/lake/part-1.parquet is not a Parquet file (length is too low: 7)"),
        (BY_PYTHON, "sea_mq_worker.pipeline.errors.PipelineError",
         "/lake/bronze cannot be written: [Errno 28] No space left"),
        ("[PATH_NOT_FOUND] Path does not exist. SQLSTATE: 42K03", "Exception",
         "[PATH_NOT_FOUND] Path does not exist. SQLSTATE: 42K03"),
    ],
)  # fmt: skip
def test_the_cause_of_sparks_error_is_shown_without_stacks(text: str, name: str, told: str) -> None:
    assert cause(Exception(text)) == (name, told)


def test_an_outage_that_a_task_has_met_is_one_here() -> None:
    text = "By it:\nsea_mq_worker.errors.BrokerUnavailableError: no server answers\n SQLSTATE: 38000"
    with pytest.raises(BrokerUnavailableError, match=r"^no server answers$"), translated():
        raise PythonException(text)


def test_a_pyspark_without_data_sources_in_python_is_refused_with_the_reason(tmp_path: Path) -> None:
    info = tmp_path / "pyspark-3.5.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.6\n")
    run = subprocess.run(
        [sys.executable, "-c", "import sea_mq_worker.pipeline"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "PySpark 3.5.6 is too old" in run.stderr
