"""A session keeps its files together, and takes them away however it ends."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from sea_mq_worker.domain.errors import BrokerUnavailableError
from sea_mq_worker.pipeline.session import described, parallelism
from sea_mq_worker.pipeline.spark_errors import cause, translated
from tests.support.waiting import eventually

UNUSED = "postgresql://nobody@127.0.0.1:1/none"
BY_JAVA = """An error occurred while calling o368.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:920)
Caused by: java.lang.RuntimeException: file:/lake/part-1.parquet is not a Parquet file (length is too low: 7)
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:599)
\t... 24 more
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


def test_jobs_are_described_inside_the_block_alone(spark: SparkSession) -> None:
    with described(spark, "outer"):
        spark.range(1).collect()
        with described(spark, "inner, of two"):
            spark.range(2).collect()
        spark.range(3).collect()
    spark.range(4).collect()
    assert descriptions(spark)[:4] == ["None", "Some(outer)", "Some(inner, of two)", "Some(outer)"]


def test_the_parallelism_is_the_number_of_cores_of_a_local_master(spark: SparkSession) -> None:
    assert parallelism(spark) == 2


def descriptions(spark: SparkSession) -> list[str]:
    """Return the descriptions of all jobs as Scala shows an option, the latest first."""
    assert spark._jvm
    jobs = spark._jsc.sc().statusStore().jobsList(None)
    return [jobs.apply(number).description().toString() for number in range(jobs.size())]


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
    text = "By it:\nsea_mq_worker.domain.errors.BrokerUnavailableError: no server answers\n SQLSTATE: 38000"
    with pytest.raises(BrokerUnavailableError, match=r"^no server answers$"), translated():
        raise PythonException(text)
