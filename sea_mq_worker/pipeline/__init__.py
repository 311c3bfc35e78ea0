"""The data pipeline on Apache Spark with Delta Lake: a source of streams, a lake, and the jobs over both.

Needs the extra ``spark``. Nothing outside this package imports pyspark. Each job takes the session first: of
``spark_session``, of a notebook or of a platform::

    from sea_mq_worker.pipeline import land
    from sea_mq_worker.settings import load_settings

    landed = land(spark, load_settings(needs=["nats_url"]), lake="/srv/lake")
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOBS = ("archive", "erase", "land", "reconcile", "replay", "report")


def register(spark: "SparkSession") -> None:
    """Add the data source ``jetstream`` to a session."""
    from sea_mq_worker.pipeline.jetstream.source import JetStreamSource  # noqa: PLC0415 - imports pyspark

    spark.dataSource.register(JetStreamSource)


def __getattr__(name: str) -> Any:
    """Import a job at its first use.

    A job has event loops of its own: where a loop runs already, as in a notebook, it works in another thread,
    with the session's job group, tags and scheduler pool.

    Raises:
        AttributeError: there is no such job.
    """
    if name not in _JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    job = getattr(import_module(f"{__name__}.jobs.{name}"), name)

    @wraps(job)
    def run(spark: "SparkSession", *arguments: Any, **options: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return job(spark, *arguments, **options)
        from pyspark import inheritable_thread_target  # noqa: PLC0415 - as above

        with ThreadPoolExecutor(1) as executor:
            return executor.submit(
                inheritable_thread_target(spark)(job), spark, *arguments, **options
            ).result()

    return run
