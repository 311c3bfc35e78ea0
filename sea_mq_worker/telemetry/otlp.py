"""Export spans and metrics over OTLP/HTTP with the extra ``otel``, configured by ``OTEL_*`` variables.

Metrics that OpenTelemetry's semantic conventions for messaging know have their names. The others have those
for Prometheus, without ``_total``, which a collector adds for Prometheus by itself.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
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

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.resources import install_hint
from sea_mq_worker.telemetry.events import Metric as Described
from sea_mq_worker.telemetry.metrics import BOUNDS_SECONDS, Families, Family, Histogram, Number

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


def metrics_data(families: Families, *, resource: Resource, since_ns: int) -> MetricsData:
    """Convert the numbers to OTLP, counted since ``since_ns`` (nanoseconds since 1970)."""
    now = time.time_ns()
    numbers = [_number(family, since_ns, now) for family in families.numbers.values()]
    histograms = [_histogram(family, since_ns, now) for family in families.histograms.values()]
    metrics = [metric for metric in (*numbers, *histograms) if metric.data.data_points]
    scope = ScopeMetrics(_SCOPE, metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scope], schema_url="")])


def _number(family: Family[Number], since_ns: int, now_ns: int) -> Metric:
    metric = family.metric
    points = [
        NumberDataPoint(_attributes(metric, values), since_ns, now_ns, number.value)
        for values, number in family.series.items()
    ]
    data = Sum(points, _CUMULATIVE, is_monotonic=True) if metric.kind == "counter" else Gauge(points)
    return _metric(metric, data)


def _histogram(family: Family[Histogram], since_ns: int, now_ns: int) -> Metric:
    metric = family.metric
    points = [
        HistogramDataPoint(
            attributes=_attributes(metric, values),
            start_time_unix_nano=since_ns,
            time_unix_nano=now_ns,
            count=sum(histogram.counts),
            sum=histogram.sum,
            bucket_counts=tuple(histogram.counts),
            explicit_bounds=BOUNDS_SECONDS,
            min=cast("float", None),  # both are unknown, and optional in the protocol
            max=cast("float", None),
        )
        for values, histogram in family.series.items()
    ]
    return _metric(metric, HistogramData(points, _CUMULATIVE))


def otlp_name(name: str) -> str:
    """Return the name over OTLP of a metric for Prometheus."""
    return _CONVENTIONS[name][0] if name in _CONVENTIONS else name.removesuffix("_total")


def _metric(metric: Described, data: Sum | Gauge | HistogramData) -> Metric:
    unit = "{message}" if metric.name in _CONVENTIONS and metric.kind == "counter" else metric.unit
    return Metric(otlp_name(metric.name), metric.meaning, unit, data)


def _attributes(metric: Described, values: Sequence[str]) -> dict[str, str]:
    labels = dict(zip(metric.labels, values, strict=True))
    if metric.name not in _CONVENTIONS:
        return labels
    system = {"messaging.system": "nats", "messaging.operation.name": _CONVENTIONS[metric.name][1]}
    return system | {_ATTRIBUTES[name]: value for name, value in labels.items()}


def _missing(what: str) -> WorkerError:
    return WorkerError(f"{what} needs the OTLP exporter: {install_hint('otel')}, or switch it off")
