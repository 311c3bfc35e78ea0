"""The tables of metrics, spans, resource attributes and log events."""

from collections.abc import Iterable

from sea_mq_worker.telemetry.catalog.log_events import LOG_EVENTS
from sea_mq_worker.telemetry.catalog.metrics import METRICS, PIPELINE_METRICS, Metric
from sea_mq_worker.telemetry.catalog.spans import RESOURCE, SPANS, SpanKind
from tools.docs.markdown import code, table


def metrics() -> str:
    """Return a row for each metric of the worker."""
    return _metrics(METRICS)


def pipeline_metrics() -> str:
    """Return a row for each metric that jobs of the pipeline write."""
    return _metrics(PIPELINE_METRICS)


def _metrics(metrics: Iterable[Metric]) -> str:
    return table(
        ("metric", "type", "labels", "what", "what to make of it"),
        ((f"`{m.name}`", m.kind, code(m.labels), m.meaning, m.conclusion) for m in metrics),
    )


def spans() -> str:
    """Return a row for each span."""
    return table(("span", "kind", "inside", "link", "time", "attributes"), map(_span, SPANS))


def _span(span: SpanKind) -> tuple[str, ...]:
    return (
        f"`{span.name}`",
        span.kind,
        f"`{span.parent}`" if span.parent else "",
        "yes" if span.linked else "",
        span.meaning,
        code(span.attributes) + (f" [{code(span.sometimes)}]" if span.sometimes else ""),
    )


def resource() -> str:
    """Return a row for each attribute of the resource."""
    return table(("attribute", "value"), ((f"`{key}`", value) for key, value in RESOURCE.items()))


def events() -> str:
    """Return a row for each log event."""
    return table(
        ("event", "level", "fields", "what, and what to do"),
        ((f"`{e.key}`", e.level, code(e.fields), e.meaning) for e in LOG_EVENTS),
    )
