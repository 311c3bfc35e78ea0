"""Start a Spark session for a job: quiet, on loopback without a cluster, with this package's data sources.

All temporary files are in one folder, below TMPDIR if set, which is deleted with the session.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.java import find_java_home
from sea_mq_worker.pipeline.signals import held
from sea_mq_worker.pipeline.sources import register
from sea_mq_worker.pipeline.spark_errors import translated

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
_ENDED = (
    "Spark's Java process ended unexpectedly ({}): run the job again. If the process was killed for lack of"
    " memory (-9, see the kernel's log), reduce the load by --master 'local[2]' or a smaller --batch-rows"
)
_DESCRIPTION = "spark.job.description"
_RANGE_ROWS = 2**16
_END_SECONDS = 30.0
_LAST_SECONDS = 1.0
"""Time between the JVM's last response and its exit."""


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session with the sources registered, and stop it afterwards.

    Args:
        name: the application's name in Spark's web pages.
        master: in the form of spark-submit; default: the master of spark-submit, or ``local[*]``.
        conf: Spark properties, which override the defaults of this module.

    Raises:
        PipelineError: no Java was found or the session cannot start. Errors of the block are translated by
            ``translated``.
    """
    with tempfile.TemporaryDirectory(prefix="sea_mq_worker-spark-", ignore_cleanup_errors=True) as folder:
        try:
            with translated():  # while Java is alive to return an error's text
                with held():  # a signal during the start would leave a JVM without an owner
                    session = _start(name, master, conf or {}, Path(folder))
                try:
                    register(session)
                    yield session
                except (Py4JError, OSError) as error:
                    if (code := _end_of_java()) is not None:
                        raise PipelineError(_ENDED.format(code)) from error
                    raise
                finally:
                    _stop(session)
        finally:
            _end_java()


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at the same time, as Spark itself assumes."""
    if (context := _context(spark)) is not None:
        return context.defaultParallelism
    return spark.range(_RANGE_ROWS).select(F.spark_partition_id()).distinct().count()


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the block's Spark jobs in Spark's web pages; through Spark Connect by a tag."""
    context = _context(spark)
    if context is None:
        tag = text.replace(",", "")  # Spark allows no comma in a tag
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type] # None removes it


def _context(spark: SparkSession) -> SparkContext | None:
    """Return the session's context; None through Spark Connect."""
    return getattr(spark, "sparkContext", None)


def _start(name: str, master: str | None, conf: Mapping[str, str], folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if _is_submitted():
        return _with(builder, {**_CONF, **conf}).getOrCreate()
    os.environ["JAVA_HOME"] = str(find_java_home())
    where = master or LOCAL
    defaults = _CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse")} | _java_options(folder)
    if where.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults |= _LOOPBACK
    return _with(builder.master(where), {**defaults, **conf}).getOrCreate()


def _is_submitted() -> bool:
    """Return whether spark-submit started the JVM and chose master and properties."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _with(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder


def _java_options(folder: Path) -> dict[str, str]:
    """Return Java options that leave ``spark.driver.extraJavaOptions`` to the user."""
    path = folder / "log4j2.properties"
    path.write_text(_QUIET)
    options = (f"-Djava.io.tmpdir={folder}", f"-Dlog4j2.configurationFile=file:{path}")
    return {"spark.driver.defaultJavaOptions": " ".join(f'"{option}"' for option in options)}


def _stop(session: SparkSession) -> None:
    """Stop a session, also if its block was interrupted or its Java process has ended."""
    if isinstance(sys.exception(), KeyboardInterrupt | SystemExit):
        # Java may still be busy and would receive the stop only afterwards; stop just the accumulator server.
        session.sparkContext._accumulatorServer.shutdown()  # noqa: SLF001
    else:
        with suppress(OSError):
            session.stop()


def _end_of_java() -> int | None:
    """Return the JVM's exit code; None: it is running, or another process owns it."""
    process = _java()
    if process:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LAST_SECONDS)
    return None


def _end_java() -> None:
    """Close the JVM's input, which ends it, and wait; do nothing if another process owns the JVM."""
    process = _java()
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next session starts another
    try:
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _java() -> "subprocess.Popen[bytes] | None":
    """Return the JVM's process; None: there is none, or spark-submit owns it."""
    gateway = SparkContext._gateway  # noqa: SLF001 - no public API returns it
    return gateway.proc if gateway else None
