"""Write the metrics of a finished job to a file, for node_exporter's collector ``textfile``."""

import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.telemetry.events import PIPELINE_METRICS

_LAST_SUCCESS = "sea_mq_pipeline_last_success_timestamp_seconds"


def write_metrics(path: Path, task: str, streams: Mapping[str, Mapping[str, float]]) -> None:
    """Write the metrics of a job that has just succeeded; the file is replaced atomically.

    Args:
        path: the file; a job needs its own.
        task: the job's name, such as ``land``.
        streams: for each stream, or an empty name, the values of metrics by the last part of their names,
            such as ``rows``.

    Raises:
        PipelineError: the file cannot be written.
    """
    registry = CollectorRegistry()
    gauges = {
        metric.name: Gauge(metric.name, metric.meaning, metric.labels, registry=registry)
        for metric in PIPELINE_METRICS
    }
    now = time.time()
    for stream, values in streams.items():
        gauges[_LAST_SUCCESS].labels(task, stream).set(now)
        for name, value in values.items():
            gauges[f"sea_mq_pipeline_{name}"].labels(task, stream).set(value)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise PipelineError(f"{path}: the metrics cannot be written: {error}") from error
