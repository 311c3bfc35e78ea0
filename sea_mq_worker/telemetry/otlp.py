"""Spans and metrics over OTLP/HTTP with the extra ``otel``, configured by the variables ``OTEL_*``.

Metrics that OpenTelemetry's semantic conventions for messaging know have their names. The others have those
for Prometheus, without ``_total``, which a collector adds for Prometheus by itself. All values come from the
instruments of ``metrics``: the SDK's histograms take one value at a time, and some ten microseconds for each.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import groupby, pairwise
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.samples import Sample

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.resources import install_hint
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop, sleep_or_stop
from sea_mq_worker.telemetry.events import METRICS, Metric
from sea_mq_worker.telemetry.metrics import BOUNDS_SECONDS, Metrics

_CONVENTIONS: Mapping[str, tuple[str, str]] = {
    "sea_mq_outbox_published_total": ("messaging.client.sent.messages", "publish"),
    "sea_mq_inbox_processed_total": ("messaging.client.consumed.messages", "process"),
    "sea_mq_inbox_message_seconds": ("messaging.process.duration", "process"),
}
"""Name and operation in the semantic conventions, by the name for Prometheus."""
_ATTRIBUTES = {"consumer": "messaging.consumer.group.name", "status": "http.response.status_code"}
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS = "60000"


def described(*, context: str, worker: str) -> Resource:
    """Describe the worker as a resource; ``OTEL_*`` variables override the defaults."""
    own = {
        "service.name": f"sea_mq_worker {context}",
        "service.version": version("sea-mq-worker"),
        "service.instance.id": worker,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


def export_spans(resource: Resource) -> Callable[[], Awaitable[None]]:
    """Export all spans from now on; the returned function sends the last ones and stops the export.

    Raises:
        WorkerError: the exporter is not installed.
        ValueError: a variable is out of range, or contradicts another.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise _missing("tracing") from error
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise ValueError(f"OTEL_*: {error}") from error
    trace.set_tracer_provider(provider)
    return lambda: _in_daemon_thread(provider.shutdown)


class MetricsExport:
    """Exports the metrics again and again; the SDK logs a collector that it cannot reach.

    Raises:
        WorkerError: the exporter is not installed.
        ValueError: the interval is not a number.
    """

    def __init__(self, metrics: Metrics, resource: Resource) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
                OTLPMetricExporter,
            )
        except ImportError as error:
            raise _missing("metrics over OTLP") from error
        interval = os.environ.get(_INTERVAL, _INTERVAL_MS)
        if not interval.isdecimal() or int(interval) == 0:
            raise ValueError(f"{_INTERVAL}: expected milliseconds, a whole number above 0")
        self._seconds = int(interval) / 1000
        self._exporter = OTLPMetricExporter()
        self._metrics = metrics
        self._resource = resource
        self._since_ns = time.time_ns()

    async def run(self, stop: asyncio.Event) -> None:
        """Export until the worker stops, which ends the wait for a slow collector."""
        while not stop.is_set():
            await sleep_or_stop(stop, seconds=self._seconds)
            with contextlib.suppress(StoppedError):
                await cancel_on_stop(stop, self.export())

    async def export(self) -> None:
        """Send all metrics, and wait for the reply."""
        data = metrics_data(self._metrics, resource=self._resource, since_ns=self._since_ns)
        await _in_daemon_thread(lambda: self._exporter.export(data))


def metrics_data(metrics: Metrics, *, resource: Resource, since_ns: int) -> sdk.MetricsData:
    """Convert the metrics to the SDK's form, counted since ``since_ns`` (nanoseconds since 1970)."""
    now_ns = time.time_ns()
    converted = []
    for metric, family in zip(METRICS, metrics.collect(), strict=True):
        if points := list(_points(metric, family.samples, since_ns, now_ns)):
            data: sdk.DataT
            if metric.kind == "histogram":
                data = sdk.Histogram(points, sdk.AggregationTemporality.CUMULATIVE)
            elif metric.kind == "counter":
                data = sdk.Sum(points, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)
            else:
                data = sdk.Gauge(points)
            unit = "{message}" if metric.name in _CONVENTIONS and metric.kind == "counter" else metric.unit
            converted.append(sdk.Metric(otlp_name(metric.name), metric.meaning, unit, data))
    scope = sdk.ScopeMetrics(InstrumentationScope("sea_mq_worker"), converted, schema_url="")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], schema_url="")])


def _points(metric: Metric, samples: list[Sample], since_ns: int, now_ns: int) -> Iterator[Any]:
    """Yield a point per series; one of a histogram has cumulative buckets, then count and sum."""
    for labels, series in groupby(samples, lambda sample: {**sample.labels, "le": ""}):
        attributes = {name: value for name, value in labels.items() if name != "le"}
        if metric.name in _CONVENTIONS:
            attributes = {_ATTRIBUTES[name]: value for name, value in attributes.items()}
            attributes["messaging.system"] = "nats"
            attributes["messaging.operation.name"] = _CONVENTIONS[metric.name][1]
        *buckets, last = (sample.value for sample in series)
        if metric.kind != "histogram":
            yield sdk.NumberDataPoint(attributes, since_ns, now_ns, value=last)
            continue
        *buckets, count = buckets
        yield sdk.HistogramDataPoint(
            attributes,
            since_ns,
            now_ns,
            count=int(count),
            sum=last,
            bucket_counts=[int(above - below) for below, above in pairwise([0, *buckets])],
            explicit_bounds=BOUNDS_SECONDS,
            min=None,  # type: ignore[arg-type]  # unknown, and optional in the protocol
            max=None,  # type: ignore[arg-type]
        )


def otlp_name(name: str) -> str:
    """Return the name over OTLP of a metric for Prometheus."""
    return _CONVENTIONS[name][0] if name in _CONVENTIONS else name.removesuffix("_total")


async def _in_daemon_thread(work: Callable[[], object]) -> None:
    """Run the work where an unavailable collector can block it without delaying the exit."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="otlp export", daemon=True).start()
    await done.wait()


def _missing(what: str) -> WorkerError:
    return WorkerError(f"{what} needs the OTLP exporter: {install_hint('otel')}, or switch it off")
