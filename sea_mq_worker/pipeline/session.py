"""Starts Spark as the jobs need it: quiet, on loopback unless a cluster is asked for, with our sources."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.java import find_java_home
from sea_mq_worker.pipeline.sources import register

LOCAL = "local[*]"

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_QUIET = """\
status = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
"""


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Provide a session with the sources registered, and stop it afterwards.

    Args:
        name: as it shows in Spark's pages.
        master: as spark-submit takes it; what spark-submit set, or ``local[*]``, unless given.
        conf: Spark properties; they win over the defaults here.

    Raises:
        PipelineError: there is no Java.
    """
    with tempfile.TemporaryDirectory(prefix="sea_mq_worker-spark-") as folder:
        session = _start(name, master, conf or {}, Path(folder))
        try:
            register(session)
            yield session
        finally:
            session.stop()


def _start(name: str, master: str | None, conf: Mapping[str, str], folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if _is_submitted():
        return _with(builder, {**_CONF, **conf}).getOrCreate()
    os.environ["JAVA_HOME"] = str(find_java_home())
    where = master or LOCAL
    defaults = _CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse")} | _quiet(folder)
    if where.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults |= _LOOPBACK
    return _with(builder.master(where), {**defaults, **conf}).getOrCreate()


def _is_submitted() -> bool:
    """spark-submit has started the JVM, and chosen master and properties."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _with(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder


def _quiet(folder: Path) -> dict[str, str]:
    path = folder / "log4j2.properties"
    path.write_text(_QUIET)
    return {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{path}"}
