"""Traces with OpenTelemetry: decorators of two ports, used only where tracing is switched on.

Across a queue spans are linked, not nested: a message may wait for days, so each side begins a trace of its
own with a link to the context that it was given. That context's sampled bit decides first: what the producer
did not sample passes through untouched and costs a look at one header. Without a context the SDK's sampler
decides alone.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.messages import HandlerRequest, OutboundMessage
from sea_mq_worker.domain.outcomes import Accepted, HandlerResult, PublishOutcome, Stored
from sea_mq_worker.ports.handler import EventHandler
from sea_mq_worker.ports.jetstream import JetStreamPublisher

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})


def configure_tracing(*, service_name: str, endpoint: str = "") -> Callable[[], None]:
    """Export spans over OTLP/HTTP; the returned function sends the last ones and ends it.

    Args:
        service_name: the resource's ``service.name``, unless ``OTEL_SERVICE_NAME`` says otherwise.
        endpoint: base URL of the collector; empty: as the ``OTEL_EXPORTER_OTLP_*`` variables say.

    Raises:
        WorkerError: the exporter is not installed.
    """
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (a tenth of a second)
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise WorkerError(
            "tracing needs the OTLP exporter: install sea-mq-worker[otel] or switch tracing off"
        ) from error
    if endpoint and urlsplit(endpoint).path in {"", "/"}:
        endpoint = f"{endpoint.rstrip('/')}/v1/traces"
    name = os.environ.get("OTEL_SERVICE_NAME", service_name)
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _tracer() -> Tracer:
    return trace.get_tracer("sea_mq_worker")


@dataclass(frozen=True, slots=True)
class TracedPublisher:
    """A JetStreamPublisher that makes a PRODUCER span of each message and sends its context along."""

    inner: JetStreamPublisher
    tracer: Tracer = field(default_factory=_tracer)

    @property
    def connected(self) -> bool:
        return self.inner.connected

    @property
    def keeps_order(self) -> bool:
        return self.inner.keeps_order

    @property
    def duplicate_window_seconds(self) -> float:
        return self.inner.duplicate_window_seconds

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        span, headers = self._begin(subject, headers)
        try:
            outcome = await self.inner.publish(subject, payload, headers)
            _note_publish(span, outcome)
        finally:
            span.end()
        return outcome

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float
    ) -> Sequence[PublishOutcome]:
        spans, traced = [], []
        for message in messages:
            span, headers = self._begin(message.subject, message.headers)
            spans.append(span)
            traced.append(message if headers is message.headers else replace(message, headers=headers))
        try:
            outcomes = await self.inner.publish_batch(traced, timeout_seconds=timeout_seconds)
            for span, outcome in zip(spans, outcomes, strict=True):
                _note_publish(span, outcome)
        finally:
            for span in spans:
                span.end()
        return outcomes

    async def find(self, ids: frozenset[str], *, since_seconds: float) -> Mapping[str, Stored]:
        return await self.inner.find(ids, since_seconds=since_seconds)

    def _begin(self, subject: str, headers: Mapping[str, str]) -> tuple[Span, Mapping[str, str]]:
        attributes = {
            "messaging.system": "nats",
            "messaging.operation.name": "publish",
            "messaging.destination.name": subject,
            "messaging.message.id": headers.get("Nats-Msg-Id", ""),
        }
        span = _linked_span(self.tracer, "outbox publish", SpanKind.PRODUCER, headers, attributes)
        return span, _carrying(span, headers)


@dataclass(frozen=True, slots=True)
class TracedHandler:
    """An EventHandler that makes a CONSUMER span of each message, with a CLIENT span for the call."""

    inner: EventHandler
    tracer: Tracer = field(default_factory=_tracer)

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        attributes = {
            "messaging.system": "nats",
            "messaging.operation.name": "process",
            "messaging.destination.name": request.subject,
            "messaging.message.id": request.message_id,
        }
        consumer = _linked_span(
            self.tracer, "inbox process", SpanKind.CONSUMER, request.trace_headers, attributes
        )
        parent = trace.set_span_in_context(consumer, otel_context.Context())
        client = (
            self.tracer.start_span("POST", parent, SpanKind.CLIENT) if consumer.is_recording() else consumer
        )
        headers = _carrying(client, request.trace_headers)
        try:
            result = await self.inner.handle(replace(request, trace_headers=headers))
            for span in (consumer, client):
                _note(span, result, good=isinstance(result, Accepted))
        finally:
            client.end()
            consumer.end()
        return result


def _linked_span(
    tracer: Tracer, name: str, kind: SpanKind, headers: Mapping[str, str], attributes: Mapping[str, str]
) -> Span:
    """Begin a trace with a link to the context in ``headers``; a span that records nothing if unsampled."""
    origin = _span_context(headers)
    if origin.is_valid and not origin.trace_flags.sampled:
        return trace.INVALID_SPAN
    links = (Link(origin),) if origin.is_valid else ()
    return tracer.start_span(name, otel_context.Context(), kind, dict(attributes), links)


def _span_context(headers: Mapping[str, str]) -> SpanContext:
    if "traceparent" not in headers:
        return trace.INVALID_SPAN_CONTEXT
    extracted = _PROPAGATOR.extract(headers, otel_context.Context())
    return trace.get_current_span(extracted).get_span_context()


def _carrying(span: Span, headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``headers`` with the span's own trace context, or as they are where it records nothing."""
    if not span.is_recording():
        return headers
    carrier = {name: value for name, value in headers.items() if name not in _TRACE_HEADERS}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, otel_context.Context()))
    return carrier


def _note_publish(span: Span, outcome: PublishOutcome) -> None:
    if isinstance(outcome, Stored):
        span.set_attribute("messaging.nats.stream.sequence", outcome.seq)
    _note(span, outcome, good=isinstance(outcome, Stored))


def _note(span: Span, outcome: PublishOutcome | HandlerResult, *, good: bool) -> None:
    span.set_attribute("sea_mq.outcome", type(outcome).__name__)
    if not good:
        span.set_status(StatusCode.ERROR)
