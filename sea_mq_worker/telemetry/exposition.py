"""Exposition of the metrics for Prometheus, rendered on a scrape."""

from collections.abc import Iterator
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sea_mq_worker.telemetry.series import BOUNDS_SECONDS, Families, Family, Histogram, Number

_Bucket: TypeAlias = tuple[str, float] | tuple[str, float, Exemplar]
_BOUNDS = (*map(str, BOUNDS_SECONDS), "+Inf")


class Exposition(Collector):
    """Exposes families, and the process's CPU, memory and descriptors."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def collect(self) -> Iterator[Exposed]:
        yield from map(_number, self._families.numbers.values())
        yield from map(_histogram, self._families.histograms.values())

    def render(self, *, open_metrics: bool) -> bytes:
        """Render OpenMetrics, which has exemplars, or the older text format."""
        if open_metrics:
            text: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text
        return exposition.generate_latest(self._registry)


def _number(family: Family[Number]) -> Exposed:
    metric = family.metric
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    exposed = kind(metric.name, metric.meaning, labels=metric.labels)
    for values, number in family.series.items():
        exposed.add_metric(values, number.value)
    return exposed


def _histogram(family: Family[Histogram]) -> Exposed:
    metric = family.metric
    exposed = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for values, histogram in family.series.items():
        exposed.add_metric(values, list(_buckets(histogram)), histogram.sum)
    return exposed


def _buckets(histogram: Histogram) -> Iterator[_Bucket]:
    for bucket, (bound, count) in enumerate(zip(_BOUNDS, accumulate(histogram.counts), strict=True)):
        if found := histogram.exemplars.get(bucket):
            labels = {"trace_id": f"{found.span.trace_id:032x}", "span_id": f"{found.span.span_id:016x}"}
            yield bound, count, Exemplar(labels, found.value, found.at)
        else:
            yield bound, count
