"""Traces across the queue: the outbox's publish and the handler's call, each behind its wait.

Spans across a queue are linked, not nested, as an event may wait for days. What the producer did not sample
passes untouched. Attributes follow OpenTelemetry's semantic conventions where they know one.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from sea_mq_worker.inbox.message import Accepted, HandlerRequest, HandlerResult, NotDelivered, Poison
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import OutboundMessage, PublishOutcome, SearchedId, SearchResult, Stored
from sea_mq_worker.ports import EventHandler, JetStreamPublisher


class SpanSpec(NamedTuple):
    """One kind of span; `{subject}` in its name is replaced by the message's."""

    name: str
    kind: str
    parent: str
    """Name of the parent span; empty: the span begins a trace."""
    linked: bool
    """Whether the span links to the trace context of the event or message."""
    meaning: str
    attributes: str
    """Names of the attributes of every such span."""
    sometimes: str = ""
    """Names of those that are set when known."""


OUTBOX_WAIT, PUBLISH, STREAM_WAIT, PROCESS, POST = SPANS = (
    SpanSpec(
        *("outbox wait", "INTERNAL", "", True),
        "Time in the outbox, from the event's creation to its publish.",
        "messaging.system messaging.destination.name messaging.message.id",
    ),
    SpanSpec(
        *("publish {subject}", "PRODUCER", "outbox wait", True),
        "Time from sending to the stream's acknowledgement; the message carries this span's context.",
        "messaging.system messaging.operation.name messaging.operation.type messaging.destination.name "
        "messaging.message.id messaging.message.body.size sea_mq.repeated sea_mq.outcome",
        "sea_mq.stream sea_mq.stream_seq error.type",
    ),
    SpanSpec(
        *("stream wait", "INTERNAL", "", True),
        "Time in the stream, by the server's clock, from storing to the handler call; "
        "it includes waits between attempts.",
        "messaging.system messaging.destination.name messaging.message.id",
    ),
    SpanSpec(
        *("process {subject}", "CONSUMER", "stream wait", True),
        "One handling attempt of a message.",
        "messaging.system messaging.operation.name messaging.operation.type messaging.destination.name "
        "messaging.consumer.group.name messaging.message.id messaging.message.body.size sea_mq.outcome",
        "error.type",
    ),
    SpanSpec(
        *("POST", "CLIENT", "process {subject}", False),
        "The call of the handler; the request carries this span's context.",
        "http.request.method server.address server.port url.full sea_mq.outcome",
        "http.response.status_code error.type",
    ),
)

RESOURCE = {
    "service.name": "`sea_mq_worker {context}`, unless `OTEL_SERVICE_NAME` is set",
    "service.version": "the worker's version",
    "service.instance.id": "the worker's name, as in leases, logs and `sea_mq_worker_info`",
}
"""Resource attributes beyond those of `OTEL_RESOURCE_ATTRIBUTES` and of the SDK."""

_PROPAGATOR = TraceContextTextMapPropagator()
_UNSAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][02468ace]")
_REJECTED = 422


def _tracer() -> trace.Tracer:
    return trace.get_tracer("sea_mq_worker")


@dataclass(frozen=True, slots=True)
class TracedPublisher:
    """A JetStreamPublisher that makes a PRODUCER span per message and adds its context to the headers."""

    inner: JetStreamPublisher
    tracer: trace.Tracer = field(default_factory=_tracer)

    @property
    def connected(self) -> bool:
        return self.inner.connected

    @property
    def keeps_order(self) -> bool:
        return self.inner.keeps_order

    @property
    def duplicate_window_seconds(self) -> float:
        return self.inner.duplicate_window_seconds

    async def read_duplicate_window(self) -> float:
        return await self.inner.read_duplicate_window()

    @property
    def max_payload(self) -> int:
        return self.inner.max_payload

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        return await self.inner.find(wanted)

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        span, message = self._begin(OutboundMessage(headers.get(MSG_ID, ""), subject, payload, headers))
        try:
            outcome = await self.inner.publish(subject, payload, message.headers)
            self._note(span, outcome)
        finally:
            span.end()
        return outcome

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float, in_order: bool = False
    ) -> Sequence[PublishOutcome]:
        begun = [self._begin(message) for message in messages]
        traced = [message for _, message in begun]
        try:
            outcomes = await self.inner.publish_batch(
                traced, timeout_seconds=timeout_seconds, in_order=in_order
            )
            for (span, _), outcome in zip(begun, outcomes, strict=True):
                self._note(span, outcome)
        finally:
            for span, _ in begun:
                span.end()
        return outcomes

    def _begin(self, message: OutboundMessage) -> tuple[trace.Span, OutboundMessage]:
        if _is_unsampled(message.headers):
            return trace.INVALID_SPAN, message
        attributes: dict[str, AttributeValue] = {
            **_message(message.subject, message.id),
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.message.body.size": len(message.payload),
            "sea_mq.repeated": message.repeated,
        }
        kinds = OUTBOX_WAIT, PUBLISH
        span = _after_wait(self.tracer, kinds, message.waited_seconds, message.headers, attributes)
        headers = _carrying(span, message.headers)
        return span, message if headers is message.headers else message._replace(headers=headers)

    def _note(self, span: trace.Span, outcome: PublishOutcome) -> None:
        if isinstance(outcome, Stored):
            span.set_attributes({"sea_mq.stream": outcome.stream, "sea_mq.stream_seq": outcome.seq})
        _judge(span, outcome, good=isinstance(outcome, Stored))


@dataclass(frozen=True, slots=True)
class TracedHandler(EventHandler):
    """An EventHandler that makes a CONSUMER span per message, with a CLIENT span for the call to ``url``."""

    inner: EventHandler
    url: str
    tracer: trace.Tracer = field(default_factory=_tracer)

    async def reach(self) -> NotDelivered | None:
        return await self.inner.reach()

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        if _is_unsampled(request.trace_headers):
            return await self.inner.handle_request(request)
        attributes: dict[str, AttributeValue] = {
            **_message(request.subject, request.message_id),
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": request.consumer,
            "messaging.message.body.size": len(request.payload),
        }
        waited_seconds = time.time() - request.stored_at.timestamp() if request.stored_at else 0.0
        kinds = STREAM_WAIT, PROCESS
        consumer = _after_wait(self.tracer, kinds, waited_seconds, request.trace_headers, attributes)
        inside = trace.set_span_in_context(consumer, Context())
        client = self.tracer.start_span(POST.name, inside, trace.SpanKind.CLIENT, _call(self.url))
        headers = _carrying(client, request.trace_headers)
        try:
            result = await self.inner.handle_request(request._replace(trace_headers=headers))
            if isinstance(result, Accepted | Poison):
                status = result.status if isinstance(result, Accepted) else _REJECTED
                client.set_attribute("http.response.status_code", status)
            for span in (consumer, client):
                _judge(span, result, good=isinstance(result, Accepted))
        finally:
            client.end()
            consumer.end()
        return result


def _after_wait(
    tracer: trace.Tracer,
    kinds: tuple[SpanSpec, SpanSpec],
    waited_seconds: float,
    headers: Mapping[str, str],
    attributes: Mapping[str, AttributeValue],
) -> trace.Span:
    """Begin a trace with the finished wait, and in it the span; without a wait the span begins the trace."""
    wait, kind = kinds
    parent, links = Context(), []
    if "traceparent" in headers:
        origin = trace.get_current_span(_PROPAGATOR.extract(headers, Context())).get_span_context()
        links = [trace.Link(origin)] if origin.is_valid else []
    if waited_seconds > 0.0:
        now = time.time_ns()
        began = now - int(min(waited_seconds * 1e9, now))  # a producer may make an event due in the year 1
        shared = {name: attributes[name] for name in wait.attributes.split()}
        span = tracer.start_span(wait.name, parent, attributes=shared, links=links, start_time=began)
        span.end(now)
        parent = trace.set_span_in_context(span, parent)
    name = kind.name.format(subject=attributes["messaging.destination.name"])
    return tracer.start_span(name, parent, trace.SpanKind[kind.kind], attributes, links)


def _message(subject: str, message_id: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "nats",
        "messaging.destination.name": subject,
        "messaging.message.id": message_id,
    }


def _call(url: str) -> dict[str, AttributeValue]:
    """Describe the call without user, password and query of the URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = f"[{host}]" if ":" in host else host
    return {
        "http.request.method": "POST",
        "server.address": host,
        "server.port": port,
        "url.full": f"{parts.scheme}://{address}:{port}{parts.path}",
    }


def _is_unsampled(headers: Mapping[str, str]) -> bool:
    """Check only the sampled bit, a tenth of the cost of parsing: most events are not sampled."""
    return _UNSAMPLED.fullmatch(headers.get("traceparent", "")) is not None


def _carrying(span: trace.Span, headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``headers`` with the span's trace context; unchanged if the span is not recorded."""
    if not span.is_recording():
        return headers
    carrier = {name: value for name, value in headers.items() if name not in {"traceparent", "tracestate"}}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier


def _judge(span: trace.Span, outcome: PublishOutcome | HandlerResult, *, good: bool) -> None:
    name = type(outcome).__name__
    span.set_attribute("sea_mq.outcome", name)
    if not good:
        span.set_attribute("error.type", name)
        span.set_status(trace.StatusCode.ERROR)
