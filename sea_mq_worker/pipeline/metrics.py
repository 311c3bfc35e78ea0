"""Metrics of streaming queries for Prometheus, kept by a listener and served over HTTP."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.telemetry.events import PIPELINE_METRICS


@contextmanager
def serving(spark: SparkSession, address: str | None) -> Iterator[None]:
    """Serve the metrics of the session's queries at ``HOST:PORT`` during the block; None: do not.

    Raises:
        PipelineError: the address cannot be used.
    """
    if address is None:
        yield
        return
    registry, (host, _, port) = CollectorRegistry(), address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, ValueError, OverflowError) as error:
        raise PipelineError(f"--metrics {address}: cannot serve there: {error}") from error
    listener = _Gauges(registry)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)
        server.shutdown()
        server.server_close()
        thread.join()


class _Gauges(StreamingQueryListener):
    """Sets the gauges of a query whose name is a task, and a stream if it reads one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            metric.name.removeprefix("sea_mq_pipeline_"): Gauge(
                metric.name, metric.meaning, metric.labels, registry=registry
            )
            for metric in PIPELINE_METRICS
        }
        self._labels: dict[str, tuple[str, str]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Remember the query's name, which not every event has."""
        task, _, stream = (event.name or "").partition(" ")
        self._labels[str(event.id)] = task, stream

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Tell of a batch."""
        progress = event.progress
        seconds = progress.durationMs.get("triggerExecution", 0) / 1000
        self._set(str(progress.id), rows=progress.numInputRows, seconds=seconds)
        for source in progress.sources:
            with suppress(ValueError, TypeError, KeyError):  # of another source, or none yet
                end, latest = (json.loads(text)["next"] for text in (source.endOffset, source.latestOffset))
                self._set(str(progress.id), lag_sequences=latest - end)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Tell that there was nothing to do."""
        self._set(str(event.id), rows=0, lag_sequences=0)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Keep what was told last, which then gets old."""

    def _set(self, query: str, **values: float) -> None:
        if labels := self._labels.get(query):
            for name, value in values.items():
                self._gauges[name].labels(*labels).set(value)
            self._gauges["last_success_timestamp_seconds"].labels(*labels).set(time.time())
