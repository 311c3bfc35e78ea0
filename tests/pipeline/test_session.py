"""A session of one's own starts anywhere, and one of others is used as it is."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from sea_mq_worker.errors import BrokerUnavailableError
from sea_mq_worker.pipeline.errors import PipelineError, cause, translated
from sea_mq_worker.pipeline.session import configured, packages
from tests.support.processes import programs_without

START = """
from sea_mq_worker.pipeline.session import spark_session
CONF = {"spark.jars.ivy": "IVY", "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}
with spark_session("mine", master="local[1]", conf=CONF) as spark:
    names = ("spark.app.name", "spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
    print(*map(spark.conf.get, names), spark.range(5).count())
    spark.sql("CREATE TABLE delta.`LAKE` (id BIGINT) USING delta")
    spark.sql("VACUUM delta.`LAKE`")  # prints by itself
"""
NOWHERE = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=1" for scheme in ("http", "https"))
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

sea_mq_worker.errors.BrokerUnavailableError: nats://127.0.0.1:1 does not answer
 SQLSTATE: 38000
"""


def start(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    ivy = environment.pop("ivy", str(Path.home() / ".ivy2.5.2"))
    script = START.replace("IVY", ivy).replace("LAKE", str(folder / "table"))
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        cwd=folder, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_a_session_has_the_java_of_the_wheel_and_the_machines_properties_and_leaves_stdout_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.sql.shuffle.partitions 400\n")
    programs = programs_without("java", tmp_path / "programs")

    ran = start(tmp_path, PATH=programs, JAVA_HOME="", SPARK_CONF_DIR=str(tmp_path))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["mine", "400", "UTC", "5"]


def test_without_a_network_the_first_start_says_in_one_sentence_what_to_do(tmp_path: Path) -> None:
    ran = start(tmp_path, ivy=str(tmp_path / "ivy"), SPARK_SUBMIT_OPTS=NOWHERE)

    said = ran.stderr.strip().splitlines()[-1]
    assert "Maven repository" in said
    assert "Without a network use the image `pipeline`" in said
    assert all(package in said for package in packages())


def test_a_job_restores_the_properties_of_a_session_of_others(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with configured(spark):
            assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_session_without_delta_lake_is_refused_with_what_it_lacks() -> None:
    other: Any = SimpleNamespace(version="4.1.2", conf={"spark.app.name": "of a notebook"})
    with (
        pytest.raises(PipelineError, match=r"delta-spark_4\.1_2\.13 and spark\.sql\.extensions=io\.delta"),
        configured(other),
    ):
        pass


def test_the_error_of_a_task_is_raised_as_if_it_was_raised_here() -> None:
    with (
        pytest.raises(BrokerUnavailableError, match=r"^nats://127\.0\.0\.1:1 does not answer$"),
        translated(),
    ):
        raise PythonException(BY_PYTHON)
    with (
        pytest.raises(PipelineError, match=r"^Spark: RuntimeException: file:/lake/part-1\.parquet is not"),
        translated(),
    ):
        raise PythonException(BY_JAVA)
    assert cause(PythonException("\n\nno such thing\n"))[1]


def test_no_private_name_of_spark_is_used_anywhere() -> None:
    root = Path(__file__).parents[2]
    files = [
        *(root / "sea_mq_worker" / "pipeline").rglob("*.py"),
        *(root / "tests" / "pipeline").rglob("*.py"),
    ]
    private = re.compile(r"\._(jvm|gateway|jsc|jsparkSession|jdf|sc|jconf|jwrite|jseq|jcols)\b")
    found = [
        f"{file.name}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if private.search(line)
    ]
    assert found == []
