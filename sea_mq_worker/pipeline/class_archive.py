"""Write an archive of Spark's Java classes, from which Java takes them instead of loading each from its jar.

Half of the time that Spark needs to start is the loading of some 15,000 classes. Java checks by itself that
the archive fits its own version and Spark's jars, and otherwise ignores it ("class data sharing").
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.java import JARS_SUFFIX, find_java
from sea_mq_worker.pipeline.session import spark_session, temporary_folder


def write_archive(archive: Path, *, on_progress: Callable[[str], None]) -> None:
    """Write the archive, or replace it atomically.

    Raises:
        PipelineError: Java is missing or refuses, or the file cannot be written.
    """
    written = archive.with_suffix(f".{os.getpid()}")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        written.touch()
    except OSError as error:
        raise PipelineError(f"{written} cannot be written: {error.strerror}") from error
    try:
        with temporary_folder() as own:
            on_progress("starting Spark, to list the classes that it needs")
            class_path = _list_classes(own / "classes", own / "rows")
            on_progress("writing the archive")
            _dump(own / "classes", class_path, written)
        archive.with_suffix(JARS_SUFFIX).write_text(class_path)
        written.replace(archive)
    finally:
        written.unlink(missing_ok=True)


def _list_classes(classes: Path, rows: Path) -> str:
    """Write the list of classes that a session and the jobs' kinds of stages need; return their jars."""
    options = f'-XX:TieredStopAtLevel=1 "-XX:DumpLoadedClassList={classes}"'
    with spark_session("prepare", master="local[2]", java_options=options) as spark:
        _run_typical_stages(spark, rows)
        assert spark._jvm  # noqa: S101, SLF001 - a local session has one
        class_path = str(spark._jvm.System.getProperty("java.class.path"))  # noqa: SLF001
    # Java archives no folder, such as that of Spark's configuration, and no jar twice.
    return ":".join(path for path in dict.fromkeys(class_path.split(":")) if Path(path).is_file())


def _run_typical_stages(spark: SparkSession, folder: Path) -> None:
    numbers = spark.range(0, 64, 1, 2).mapInArrow(lambda batches: batches, "id bigint")
    keyed = numbers.withColumn("key", (F.col("id") % 2).cast("string"))
    keyed.write.partitionBy("key").parquet(str(folder))
    rows = spark.read.parquet(str(folder)).repartition(2, "key").persist(StorageLevel.DISK_ONLY)
    rank = F.row_number().over(Window.partitionBy("key").orderBy("id"))
    ranked = (
        rows.withColumn("rank", rank).join(numbers, "id", "left").unionAll(rows.select("id", "key", "id"))
    )
    ranked.rollup("key").agg(F.sum("id"), F.percentile_approx("rank", 0.5)).orderBy("key").toArrow()


def _dump(classes: Path, class_path: str, archive: Path) -> None:
    command = [
        *(str(find_java()), "-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr", "-cp", class_path),
        *(f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - Spark's own Java
    if ran.returncode:
        reason = " ".join((ran.stderr or ran.stdout).split()[-40:])
        raise PipelineError(f"Java cannot write an archive of Spark's classes: {reason}")
