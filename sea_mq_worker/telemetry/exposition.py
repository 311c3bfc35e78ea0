"""Exposition of the metrics for Prometheus, rendered on a scrape."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from sea_mq_worker.telemetry.series import BOUNDS_SECONDS, Families, Family, Histogram, Number

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

    def render(self) -> bytes:
        """Render the text format."""
        return generate_latest(self._registry)


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
        buckets = list(zip(_BOUNDS, accumulate(histogram.counts), strict=True))
        exposed.add_metric(values, buckets, histogram.sum)
    return exposed
