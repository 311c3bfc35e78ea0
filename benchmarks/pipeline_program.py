"""``python -m benchmarks.pipeline_program MASTER EVENTS``: a Spark session that runs the steps of stdin.

A line is the JSON of one step and its options; the answer is a line when the step is done. So the same warm
session is measured step by step, and is idle while messages are published.
"""

import json
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession

from sea_mq_worker.pipeline import land, reconcile, register, report
from sea_mq_worker.pipeline.session import spark_session
from sea_mq_worker.settings import Settings, load_settings

_INTERVAL_SECONDS = 0.5


class Steps:
    """The steps that a line may name."""

    def __init__(self, spark: SparkSession, settings: Settings, lake: str) -> None:
        self._spark, self._settings, self._lake = spark, settings, lake
        self._stop = threading.Event()
        self._query = threading.Thread(target=self._land_on)

    def floor(self, first: int, folder: str) -> None:
        """Read messages from a sequence on, and write them by Spark's own Parquet writer."""
        source = self._spark.read.format("jetstream").option("stream", self._settings.stream)
        source.option("startSeq", first).load().write.parquet(folder)

    def land(self) -> None:
        """Land until caught up."""
        land(self._spark, self._settings, lake=self._lake, streams=[self._settings.stream])

    def reconcile(self) -> None:
        """Compare all events with all messages, streams and lake."""
        reconcile(self._spark, self._settings, lake=self._lake)

    def report(self) -> None:
        """Count all figures of the page."""
        report(self._spark, self._settings, lake=self._lake)

    def follow(self) -> None:
        """Keep landing from now on."""
        self._query.start()

    def end(self) -> None:
        """Stop landing."""
        self._stop.set()
        self._query.join()

    def _land_on(self) -> None:
        options: dict[str, Any] = {"every": _INTERVAL_SECONDS, "stop": self._stop}
        land(self._spark, self._settings, lake=self._lake, streams=[self._settings.stream], **options)


def main() -> None:
    """Answer each line."""
    master, events, lake = sys.argv[1:]
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events,
    }
    if "cluster" in master:
        conf["spark.executor.memory"] = "1g"
    with spark_session("benchmark", master=master, conf=conf) as spark:
        register(spark)
        steps = Steps(spark, load_settings(needs=("database_url", "nats_url")), lake)
        print("ready", flush=True)
        for line in sys.stdin:
            options = json.loads(line)
            getattr(steps, options.pop("step"))(**options)
            print("done", flush=True)


if __name__ == "__main__":
    main()
