"""The tables of settings, findings, metrics, spans and log events: each follows from the code."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sea_mq_worker.admin.api import ROUTES
from sea_mq_worker.doctor import Severity
from sea_mq_worker.settings import ENV_PREFIX, ConsumerSettings, Settings
from sea_mq_worker.telemetry.events import EVENTS, FATAL_NOTICES, METRICS, NOTICES, PIPELINE_METRICS
from sea_mq_worker.telemetry.tracing import RESOURCE, SPANS, SpanSpec
from tools.docs.markdown import code, entries, table

_PACKAGE = Path(__file__).parents[2] / "sea_mq_worker"


def list_of_settings() -> str:
    """Return an entry for each setting, with its default, in the order of the class."""
    return "".join(
        f"- `{ENV_PREFIX}{name.upper()}`{_default(field)}: {_meaning(field)}\n"
        for name, field in Settings.model_fields.items()
    )


def _default(field: FieldInfo) -> str:
    """Write the default as a variable would hold it, or nothing if there is no default."""
    match field.default:
        case None | "" | SecretStr():
            return ""
        case bool() as value:
            return f" (`{str(value).lower()}`)"
        case float() as value:
            return f" (`{value:.15g}`)"
        case frozenset() | tuple() as values:
            return f" (`{','.join(sorted(map(_element, values)))}`)"
        case value:
            return f" (`{value}`)"


def _element(value: object) -> str:
    return f"{value.stream}/{value.durable}" if isinstance(value, ConsumerSettings) else str(value)


def _meaning(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    if get_origin(field.annotation) is not Literal:
        return text
    return f"{text} One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."


class Kind(NamedTuple):
    """A kind of finding of doctor."""

    slug: str
    severity: Severity
    why: str
    fix: str


@cache
def findings() -> Sequence[Kind]:
    """Read each kind of finding from the call that makes it."""
    return [
        _kind(node, Severity(node.func.id))
        for name in ("database", "broker", "services")
        for node in ast.walk(ast.parse((_PACKAGE / "doctor" / f"{name}.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in set(Severity)
    ]


def _kind(call: ast.Call, severity: Severity) -> Kind:
    texts = {each.arg: each.value for each in call.keywords}
    slug, why, fix = map(ast.literal_eval, (call.args[0], texts["why"], texts["fix"]))
    return Kind(slug, severity, why, fix)


def list_of_findings() -> str:
    """Return a list for each severity; doctor itself prints the remedies."""
    return "\n".join(
        f"### {severity.title()}\n\n"
        + entries((kind.slug, kind.why) for kind in findings() if kind.severity is severity)
        for severity in Severity
    )


def metrics() -> str:
    """Return an entry for each metric of the worker, with its labels; the names tell counters from gauges."""
    return "".join(
        f"- `{m.name}`{f' ({code(m.labels)})' if m.labels else ''}: "
        f"{'Histogram. ' if m.kind == 'histogram' else ''}{m.meaning} {m.conclusion}\n"
        for m in METRICS
    )


def pipeline_metrics() -> str:
    """Return an entry for each gauge that jobs of the pipeline write; all have the same labels."""
    return entries((m.name, f"{m.meaning} {m.conclusion}") for m in PIPELINE_METRICS)


def spans() -> str:
    """Return a row for each span."""
    return table(("span", "kind", "time", "attributes"), map(_span, SPANS))


def _span(span: SpanSpec) -> tuple[str, ...]:
    return (
        f"`{span.name}`",
        span.kind,
        span.meaning,
        code(span.attributes.split()) + (f" [{code(span.sometimes.split())}]" if span.sometimes else ""),
    )


def resource() -> str:
    """Return an entry for each attribute of the resource."""
    return entries(RESOURCE.items())


def events() -> str:
    """Return an entry for each log event, without level and fields for a warning that has a text alone."""
    warnings = [EVENTS[key] for key in NOTICES if key not in FATAL_NOTICES]
    others = [e for e in EVENTS.values() if e not in warnings]
    first = "".join(f"- `{e.key}` ({e.level}; {code(e.fields)}): {e.meaning}\n" for e in others)
    second = entries((e.key, e.meaning) for e in warnings)
    return f"{first}\nWarnings with the one field `text`:\n\n{second}"


def routes() -> str:
    """Return an entry for each route of the page: the first line about the call that it makes."""
    return entries((f"{method} {path}", (call.__doc__ or "").split("\n")[0]) for method, path, call in ROUTES)
