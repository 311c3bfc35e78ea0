"""Start or connect a Spark session for a job, and prepare a given one.

Properties of spark-submit, of ``spark-defaults.conf`` and of a given session keep their values.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path

from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.errors import PipelineError, translated
from sea_mq_worker.pipeline.java import java_home
from sea_mq_worker.pipeline.signals import held
from sea_mq_worker.resources import install_hint

_JOB_PROPERTIES = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.session.timeZone": "UTC",
}
"""The properties that the results of the jobs depend on."""

_LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
}
_SHELL = {"spark.ui.showConsoleProgress": "false"}
"""Overrides the defaults that Spark has for its interactive shell."""

ARCHIVE = Path(sys.prefix, "share", "sea_mq_worker", "spark-classes.jsa")
"""The archive of Spark's Java classes, if `pipeline prepare` has written it; see ``class_archive``."""

_QUIET = files(__package__).joinpath("log4j2.properties").read_text(encoding="utf-8")
_ENDED = (
    "Spark's Java process ended unexpectedly ({}): run the job again. If the process was killed for lack of"
    " memory (-9, see the kernel's log), reduce the load by --master 'local[2]' or a smaller --batch-rows"
)
_UNSUITABLE = (
    "the jobs depend on properties that this session does not have, and this version of Spark Connect cannot"
    " copy the session: set them by spark.conf.set: {}"
)
_DESCRIPTION = "spark.job.description"
_RANGE_ROWS = 2**16
_END_SECONDS = 30.0
_LAST_SECONDS = 1.0
"""Time between the JVM's last response and its exit."""
_FOLDER_PREFIX = "sea_mq_worker-spark-"
_FOLDER_AGE_SECONDS_MIN = 3600.0
"""A younger folder may belong to a process that has not locked it yet."""


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, java_options: str = ""
) -> Iterator[SparkSession]:
    """Yield a session for jobs, and stop it afterwards.

    Args:
        name: the application's name in Spark's web pages, unless spark-submit chose one.
        master: in the form of spark-submit, or a Spark Connect server as ``sc://host:15002``; default: the
            configured master, or ``local[*]``.
        conf: Spark properties, which override the configured ones.
        java_options: options of the driver's Java if it starts here; SPARK_SUBMIT_OPTS and Spark's properties
            for Java options override them.

    Raises:
        PipelineError: no Java was found or the session cannot start. Errors of the block are translated by
            ``translated``.
    """
    is_remote = master is not None and master.startswith("sc://")
    with (
        _connected(str(master), conf or {}) if is_remote else _started(name, master, conf or {}, java_options)
    ) as session:
        yield job_session(session)


def job_session(spark: SparkSession) -> SparkSession:
    """Return a session with the properties that the jobs depend on.

    It is the given session if that has these properties, else another one of the same application, because a
    given session keeps its properties.

    Raises:
        PipelineError: the given session lacks a property, and Spark Connect cannot create another session.
    """
    if any(spark.conf.get(name, None) != value for name, value in _JOB_PROPERTIES.items()):
        return _session_beside(spark)
    return spark


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at the same time, as Spark itself assumes."""
    if (context := spark_context(spark)) is not None:
        return context.defaultParallelism
    return spark.range(_RANGE_ROWS).select(F.spark_partition_id()).distinct().count()


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the block's Spark jobs in Spark's web pages; through Spark Connect by a tag."""
    if (context := spark_context(spark)) is None:
        tag = text.replace(",", "")  # Spark allows no comma in a tag
        spark.addTag(tag)
        end = partial(spark.removeTag, tag)
    else:
        before = context.getLocalProperty(_DESCRIPTION)
        context.setJobDescription(text)
        end = partial(context.setLocalProperty, _DESCRIPTION, before)  # type: ignore[arg-type] # None removes it
    try:
        yield
    finally:
        end()


def spark_context(spark: SparkSession) -> SparkContext | None:
    """Return the session's context; None through Spark Connect."""
    return getattr(spark, "sparkContext", None)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder below TMPDIR and delete it afterwards."""
    _delete_abandoned()
    with (
        tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, ignore_cleanup_errors=True) as folder,
        Path(folder, "lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(folder)


def _session_beside(spark: SparkSession) -> SparkSession:
    """Copy a session with its properties and data sources, and add the jobs' properties to the copy."""
    if (context := spark_context(spark)) is not None:
        other = SparkSession(context, spark._jsparkSession.cloneSession())  # noqa: SLF001 - no public API copies
    elif hasattr(spark, "cloneSession"):
        other = spark.cloneSession()
    else:
        properties = ", ".join("=".join(pair) for pair in _JOB_PROPERTIES.items())
        raise PipelineError(_UNSUITABLE.format(properties))
    for name, value in _JOB_PROPERTIES.items():
        other.conf.set(name, value)
    return other


@contextmanager
def _connected(remote: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    with translated():
        builder = SparkSession.builder.remote(remote).config(map={**conf, **_JOB_PROPERTIES})
        try:
            session = builder.getOrCreate()
        except ImportError as error:
            raise PipelineError(f"{error}: {install_hint('spark-connect')}") from error
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def _started(
    name: str, master: str | None, conf: Mapping[str, str], java_options: str
) -> Iterator[SparkSession]:
    # An error's text is translated while Java is alive to return it.
    with temporary_folder() as folder, ExitStack() as at_end, translated():
        with held():  # a signal during the start would leave a JVM without an owner
            given = _SHELL | {"spark.app.name": name} | ({"spark.master": master} if master else {})
            submitted = SparkConf(loadDefaults=False).setAll([*(given | {**conf}).items()])
            with _environment(_java_environment(folder, java_options)):
                gateway = launch_gateway(submitted)  # type: ignore[no-untyped-call]
            java: subprocess.Popen[bytes] | None = gateway.proc  # None: spark-submit owns it
            if java:
                at_end.callback(_end, java, gateway)
            properties = _properties(SparkConf(_jvm=gateway.jvm).setAll([*conf.items()]), folder)
            session = SparkSession(SparkContext(conf=properties, gateway=gateway))
        try:
            yield session
        except (Py4JError, OSError) as error:
            if java and (code := _exit_code(java)) is not None:
                raise PipelineError(_ENDED.format(code)) from error
            raise
        finally:
            _stop(session)


def _java_environment(folder: Path, java_options: str) -> dict[str, str]:
    """Return the environment of the Java process; it leaves the properties for Java options to the user."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java
        return {}
    log = folder / "log4j2.properties"
    log.write_text(_QUIET)
    options = f'"-Djava.io.tmpdir={folder}" "-Dlog4j2.configurationFile=file:{log}"'
    return {
        "JAVA_HOME": str(java_home(folder / "java", ARCHIVE)),
        "SPARK_SUBMIT_OPTS": f"{options} {java_options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
    }


def _delete_abandoned() -> None:
    """Delete this user's old folders that no process has locked: killed processes left them behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):  # in use, or another process deletes it
            about = folder.stat()
            if about.st_uid == os.getuid() and about.st_mtime < time.time() - _FOLDER_AGE_SECONDS_MIN:
                with (folder / "lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = os.environ.copy()
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name)
        os.environ.update(before)


def _properties(properties: SparkConf, folder: Path) -> SparkConf:
    """Add defaults for properties that are not set."""
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    is_local = str(properties.get("spark.master")).startswith("local")
    for key, value in (_JOB_PROPERTIES | (_LOCAL_DEFAULTS | warehouse if is_local else {})).items():
        properties.setIfMissing(key, value)
    return properties


def _stop(session: SparkSession) -> None:
    """Stop a session, also if its block was interrupted or its Java process has ended."""
    if isinstance(sys.exception(), KeyboardInterrupt | SystemExit):
        # Java may still be busy and would receive the stop only afterwards; stop just the accumulator server.
        session.sparkContext._accumulatorServer.shutdown()  # noqa: SLF001
    else:
        with suppress(OSError):
            session.stop()


def _exit_code(java: "subprocess.Popen[bytes]") -> int | None:
    """Return the JVM's exit code; None: it is running."""
    with suppress(subprocess.TimeoutExpired):
        return java.wait(_LAST_SECONDS)
    return None


def _end(java: "subprocess.Popen[bytes]", gateway: JavaGateway) -> None:
    """End the thread that releases the JVM's objects; close the JVM's input, which ends it, and wait."""
    # The next session starts another.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    with suppress(Py4JError):  # the JVM may have ended
        gateway.shutdown()
    try:
        java.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
