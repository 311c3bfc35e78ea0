"""Starts Spark as the jobs need it: quiet, on loopback unless a cluster is asked for, with our sources.

All that it writes besides results is in one folder, below TMPDIR if that is set, and goes with the session.
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
    "Java, in which Spark runs, has ended meanwhile ({}): run the job again; where it was killed for want of"
    " memory (-9, see the kernel's log), let it do less at a time: --master 'local[2]', --batch-rows"
)
_END_SECONDS = 30.0
_LAST_SECONDS = 1.0
"""Between the last that is heard of a JVM and its end."""


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
        PipelineError: there is no Java, or no session; and what ``translated`` raises of the block's errors.
    """
    with tempfile.TemporaryDirectory(prefix="sea_mq_worker-spark-", ignore_cleanup_errors=True) as folder:
        try:
            with translated():  # as long as there is a Java to ask for an error's text
                with held():  # nothing leads to a JVM that has just been started
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
    """spark-submit has started the JVM, and chosen master and properties."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _with(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder


def _java_options(folder: Path) -> dict[str, str]:
    """Return what Java gets besides what ``spark.driver.extraJavaOptions`` adds."""
    path = folder / "log4j2.properties"
    path.write_text(_QUIET)
    options = (f"-Djava.io.tmpdir={folder}", f"-Dlog4j2.configurationFile=file:{path}")
    return {"spark.driver.defaultJavaOptions": " ".join(f'"{option}"' for option in options)}


def _stop(session: SparkSession) -> None:
    """Stop a session, also one whose block was interrupted, and one whose Java is no more."""
    if isinstance(sys.exception(), KeyboardInterrupt | SystemExit):
        # Java, which may still be at work, would hear of a stop only afterwards; nobody is to miss it.
        session.sparkContext._accumulatorServer.shutdown()  # noqa: SLF001
    else:
        with suppress(OSError):
            session.stop()


def _end_of_java() -> int | None:
    """Return the JVM's exit code; None: it has not ended, or is not ours."""
    process = _java()
    if process:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LAST_SECONDS)
    return None


def _end_java() -> None:
    """End the JVM where it is ours, as it does when its input ends; it is done with its folder then."""
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
    """Return the JVM; None: there is none, or it is spark-submit's."""
    gateway = SparkContext._gateway  # noqa: SLF001 - nothing else leads to it
    return gateway.proc if gateway else None
