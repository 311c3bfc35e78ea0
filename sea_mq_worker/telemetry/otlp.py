"""Export spans and metrics over OTLP/HTTP with the extra ``otel``, configured by ``OTEL_*`` variables.

Metrics that OpenTelemetry's semantic conventions for messaging know have their names. The others have those
for Prometheus, without ``_total``, which a collector adds for Prometheus by itself.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import cast

from opentelemetry import trace
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.samples import Sample

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.resources import install_hint
from sea_mq_worker.telemetry.events import METRICS
from sea_mq_worker.telemetry.events import Metric as Described
from sea_mq_worker.telemetry.metrics import BOUNDS_SECONDS, Metrics

_CONVENTIONS: Mapping[str, tuple[str, str]] = {
    "sea_mq_outbox_published_total": ("messaging.client.sent.messages", "publish"),
    "sea_mq_inbox_processed_total": ("messaging.client.consumed.messages", "process"),
    "sea_mq_inbox_message_seconds": ("messaging.process.duration", "process"),
}
"""Name and operation in the semantic conventions, by the name for Prometheus."""
_ATTRIBUTES = {"consumer": "messaging.consumer.group.name", "status": "http.response.status_code"}
_SCOPE = InstrumentationScope("sea_mq_worker")
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def described(*, context: str, worker: str) -> Resource:
    """Describe the worker as a resource; ``OTEL_*`` variables override the defaults."""
    own = {
        "service.name": f"sea_mq_worker {context}",
        "service.version": version("sea-mq-worker"),
        "service.instance.id": worker,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


def export_spans(resource: Resource) -> Callable[[], None]:
    """Export all spans from now on; the returned function sends the last ones and stops the export.

    Raises:
        WorkerError: the exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise _missing("tracing") from error
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def metrics_exporter() -> Callable[[MetricsData], None]:
    """Return a function that sends metrics and waits for the reply; the SDK logs an unreachable collector.

    Raises:
        WorkerError: the exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter,
        )
    except ImportError as error:
        raise _missing("metrics over OTLP") from error
    exporter = OTLPMetricExporter()

    def export(data: MetricsData) -> None:
        exporter.export(data)

    return export


def metrics_data(metrics: Metrics, *, resource: Resource, since_ns: int) -> MetricsData:
    """Convert the numbers to OTLP, counted since ``since_ns`` (nanoseconds since 1970).

    The SDK's own histograms take one value at a time, and some ten microseconds for each.
    """
    now = time.time_ns()
    converted = [
        _metric(metric, _data(metric, family.samples, since_ns, now))
        for metric, family in zip(METRICS, metrics.collect(), strict=True)
        if family.samples
    ]
    scope = ScopeMetrics(_SCOPE, converted, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scope], schema_url="")])


def _data(
    metric: Described, samples: Sequence[Sample], since_ns: int, now_ns: int
) -> Sum | Gauge | HistogramData:
    if metric.kind == "histogram":
        return HistogramData(list(_histograms(metric, samples, since_ns, now_ns)), _CUMULATIVE)
    points = [
        NumberDataPoint(_attributes(metric, sample.labels), since_ns, now_ns, sample.value)
        for sample in samples
    ]
    return Sum(points, _CUMULATIVE, is_monotonic=True) if metric.kind == "counter" else Gauge(points)


def _histograms(
    metric: Described, samples: Sequence[Sample], since_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint]:
    """Yield a point per series, whose samples are its cumulative buckets, the count and the sum."""
    cumulative = [0]
    for sample in samples:
        if sample.name.endswith("_bucket"):
            cumulative.append(int(sample.value))
        elif sample.name.endswith("_sum"):
            yield HistogramDataPoint(
                attributes=_attributes(metric, sample.labels),
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                count=cumulative[-1],
                sum=sample.value,
                bucket_counts=[above - below for below, above in pairwise(cumulative)],
                explicit_bounds=BOUNDS_SECONDS,
                min=cast("float", None),  # both are unknown, and optional in the protocol
                max=cast("float", None),
            )
            cumulative = [0]


def otlp_name(name: str) -> str:
    """Return the name over OTLP of a metric for Prometheus."""
    return _CONVENTIONS[name][0] if name in _CONVENTIONS else name.removesuffix("_total")


def _metric(metric: Described, data: Sum | Gauge | HistogramData) -> Metric:
    unit = "{message}" if metric.name in _CONVENTIONS and metric.kind == "counter" else metric.unit
    return Metric(otlp_name(metric.name), metric.meaning, unit, data)


def _attributes(metric: Described, labels: Mapping[str, str]) -> dict[str, str]:
    if metric.name not in _CONVENTIONS:
        return dict(labels)
    system = {"messaging.system": "nats", "messaging.operation.name": _CONVENTIONS[metric.name][1]}
    return system | {_ATTRIBUTES[name]: value for name, value in labels.items()}


def _missing(what: str) -> WorkerError:
    return WorkerError(f"{what} needs the OTLP exporter: {install_hint('otel')}, or switch it off")
