"""The data pipeline on Apache Spark: sources, a lake of Delta tables, and the jobs over both.

Needs the extra ``spark``. Nothing outside this package imports pyspark. ``land``, ``archive``, ``reconcile``,
``replay`` and ``report`` run in a session of the caller.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import iscoroutinefunction
from typing import Any

_JOBS = ("archive", "land", "reconcile", "replay", "report")
_MAJOR_MIN = 4

with suppress(PackageNotFoundError):
    _spark_version = version("pyspark")  # importing pyspark itself would slow the start of every command
    if int(_spark_version.partition(".")[0]) < _MAJOR_MIN:
        raise ImportError(
            f"PySpark {_spark_version} is too old, because Spark has data sources in Python since version"
            f" {_MAJOR_MIN}: pip install 'pyspark>={_MAJOR_MIN},<{_MAJOR_MIN + 1}'"
        )


def __getattr__(name: str) -> Any:
    """Import a job at its first use.

    Raises:
        AttributeError: there is no such job.
    """
    if name not in _JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    job = getattr(import_module(f"{__name__}.jobs.{name}.job"), name)
    return job if iscoroutinefunction(job) else _outside_event_loops(job)


def _outside_event_loops(job: Callable[..., Any]) -> Callable[..., Any]:
    """Run a job, which has its own event loops, in another thread if this one has a loop (notebooks).

    The thread inherits the session's job group, tags and scheduler pool.
    """

    @wraps(job)
    def run(spark: Any, *arguments: Any, **options: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return job(spark, *arguments, **options)
        from pyspark import inheritable_thread_target  # noqa: PLC0415 - slow, see above

        own = inheritable_thread_target(spark)(job) if spark else job
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(own, spark, *arguments, **options).result()

    return run
