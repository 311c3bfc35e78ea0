"""Traces with OpenTelemetry: decorators of two ports, used only if tracing is on.

Spans across a queue are linked, not nested: a message may wait for days, so each side begins its own trace
with a link to the received context. The trace begins with the wait, so it shows the whole delay. The sampled
bit of the received context decides first: a message that the producer did not sample passes unchanged and
costs a check of one header. Without a context the SDK's sampler decides.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from sea_mq_worker.inbox.message import Accepted, HandlerRequest, HandlerResult, NotDelivered, Poison
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import OutboundMessage, PublishOutcome, SearchedId, SearchResult, Stored
from sea_mq_worker.ports import EventHandler, JetStreamPublisher

# --- Catalog of the worker's spans; attributes follow OpenTelemetry's semantic conventions where one
# exists.

SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
GROUP = "messaging.consumer.group.name"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
ERROR_TYPE = "error.type"
METHOD = "http.request.method"
STATUS = "http.response.status_code"
SERVER = "server.address"
PORT = "server.port"
URL = "url.full"
OUTCOME = "sea_mq.outcome"
REPEATED = "sea_mq.repeated"
STREAM = "sea_mq.stream"
STREAM_SEQ = "sea_mq.stream_seq"


@dataclass(frozen=True, slots=True)
class SpanSpec:
    """One kind of span; `{subject}` in its name is replaced by the message's.

    Attributes:
        parent: name of the parent span; empty: the span begins a trace.
        linked: whether the span links to the trace context of the event or message.
        meaning: the measured interval.
        attributes: attributes of every such span; ``sometimes``: those that are set when known.
    """

    name: str
    kind: str
    parent: str
    linked: bool
    meaning: str
    attributes: tuple[str, ...]
    sometimes: tuple[str, ...] = ()


OUTBOX_WAIT = SpanSpec(
    "outbox wait",
    "INTERNAL",
    "",
    True,
    "Time in the outbox, from the event's creation to its publish.",
    (SYSTEM, DESTINATION, MESSAGE_ID),
)
PUBLISH = SpanSpec(
    "publish {subject}",
    "PRODUCER",
    "outbox wait",
    True,
    "Time from sending to the stream's acknowledgement; the message carries this span's context.",
    (SYSTEM, OPERATION, OPERATION_TYPE, DESTINATION, MESSAGE_ID, BODY_SIZE, REPEATED, OUTCOME),
    (STREAM, STREAM_SEQ, ERROR_TYPE),
)
STREAM_WAIT = SpanSpec(
    "stream wait",
    "INTERNAL",
    "",
    True,
    "Time in the stream, by the server's clock, from storing to the handler call; "
    "it includes waits between attempts.",
    (SYSTEM, DESTINATION, MESSAGE_ID),
)
PROCESS = SpanSpec(
    "process {subject}",
    "CONSUMER",
    "stream wait",
    True,
    "One handling attempt of a message.",
    (SYSTEM, OPERATION, OPERATION_TYPE, DESTINATION, GROUP, MESSAGE_ID, BODY_SIZE, OUTCOME),
    (ERROR_TYPE,),
)
POST = SpanSpec(
    "POST",
    "CLIENT",
    "process {subject}",
    False,
    "The call of the handler; the request carries this span's context.",
    (METHOD, SERVER, PORT, URL, OUTCOME),
    (STATUS, ERROR_TYPE),
)
SPANS = (OUTBOX_WAIT, PUBLISH, STREAM_WAIT, PROCESS, POST)

RESOURCE = {
    "service.name": "`sea_mq_worker {context}`, unless `OTEL_SERVICE_NAME` is set",
    "service.version": "the worker's version",
    "service.instance.id": "the worker's name, as in leases, logs and `sea_mq_worker_info`",
}
"""Resource attributes beyond those of `OTEL_RESOURCE_ATTRIBUTES` and of the SDK."""


_PROPAGATOR = TraceContextTextMapPropagator()
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
_UNSAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][02468ace]")
_REJECTED = 422


def _tracer() -> Tracer:
    return trace.get_tracer("sea_mq_worker")


@dataclass(frozen=True, slots=True)
class TracedPublisher:
    """A JetStreamPublisher that makes a PRODUCER span per message and adds its context to the headers."""

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

    async def read_duplicate_window(self) -> float:
        return await self.inner.read_duplicate_window()

    @property
    def max_payload(self) -> int:
        return self.inner.max_payload

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        message = OutboundMessage(
            id=headers.get(MSG_ID, ""), subject=subject, payload=payload, headers=headers
        )
        span, message = self._begin(message)
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

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        return await self.inner.find(wanted)

    def _begin(self, message: OutboundMessage) -> tuple[Span, OutboundMessage]:
        if _is_unsampled(message.headers):
            return trace.INVALID_SPAN, message
        origin = _span_context(message.headers)
        about = _about(message.subject, message.id)
        parent = _waited(self.tracer, OUTBOX_WAIT, message.waited_seconds, origin, about)
        about |= {
            OPERATION: "publish",
            OPERATION_TYPE: "send",
            BODY_SIZE: len(message.payload),
            REPEATED: message.repeated,
        }
        name = PUBLISH.name.format(subject=message.subject)
        span = self.tracer.start_span(name, parent, SpanKind.PRODUCER, about, _links(origin))
        headers = _carrying(span, message.headers)
        return span, message if headers is message.headers else message._replace(headers=headers)

    def _note(self, span: Span, outcome: PublishOutcome) -> None:
        if isinstance(outcome, Stored):
            span.set_attributes({STREAM: outcome.stream, STREAM_SEQ: outcome.seq})
        _judge(span, outcome, good=isinstance(outcome, Stored))


@dataclass(frozen=True, slots=True)
class TracedHandler(EventHandler):
    """An EventHandler that makes a CONSUMER span per message, with a CLIENT span for the call.

    Attributes:
        url: URL of the handler; spans omit its user, password and query.
    """

    inner: EventHandler
    url: str
    tracer: Tracer = field(default_factory=_tracer)

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        if _is_unsampled(request.trace_headers):
            return await self.inner.handle_request(request)
        consumer = self._consumer_span(request, _span_context(request.trace_headers))
        inside = trace.set_span_in_context(consumer, Context())
        client = self.tracer.start_span(POST.name, inside, SpanKind.CLIENT, _about_call(self.url))
        headers = _carrying(client, request.trace_headers)
        try:
            result = await self.inner.handle_request(request._replace(trace_headers=headers))
            self._note(consumer, client, result)
        finally:
            client.end()
            consumer.end()
        return result

    async def reach(self) -> NotDelivered | None:
        return await self.inner.reach()

    def _consumer_span(self, request: HandlerRequest, origin: SpanContext) -> Span:
        about = _about(request.subject, request.message_id)
        waited_seconds = time.time() - request.stored_at.timestamp() if request.stored_at else 0.0
        parent = _waited(self.tracer, STREAM_WAIT, waited_seconds, origin, about)
        about |= {
            OPERATION: "process",
            OPERATION_TYPE: "process",
            GROUP: request.consumer,
            BODY_SIZE: len(request.payload),
        }
        name = PROCESS.name.format(subject=request.subject)
        return self.tracer.start_span(name, parent, SpanKind.CONSUMER, about, _links(origin))

    def _note(self, consumer: Span, client: Span, result: HandlerResult) -> None:
        if isinstance(result, Accepted):
            client.set_attribute(STATUS, result.status)
        elif isinstance(result, Poison):
            client.set_attribute(STATUS, _REJECTED)
        for span in (consumer, client):
            _judge(span, result, good=isinstance(result, Accepted))


def _waited(
    tracer: Tracer, kind: SpanSpec, seconds: float, origin: SpanContext, about: Mapping[str, AttributeValue]
) -> Context:
    """Begin a trace with the finished wait; without a wait the next span begins the trace."""
    if seconds <= 0.0:
        return Context()
    now = time.time_ns()
    began = now - int(min(seconds * 1e9, now))  # a producer may make an event due in the year 1
    span = tracer.start_span(kind.name, Context(), attributes=about, links=_links(origin), start_time=began)
    span.end(now)
    return trace.set_span_in_context(span, Context())


def _about(subject: str, message_id: str) -> dict[str, AttributeValue]:
    return {SYSTEM: "nats", DESTINATION: subject, MESSAGE_ID: message_id}


def _about_call(url: str) -> dict[str, AttributeValue]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = f"[{host}]" if ":" in host else host
    return {
        METHOD: "POST",
        SERVER: host,
        PORT: port,
        URL: f"{parts.scheme}://{address}:{port}{parts.path}",
    }


def _links(origin: SpanContext) -> tuple[Link, ...]:
    return (Link(origin),) if origin.is_valid else ()


def _is_unsampled(headers: Mapping[str, str]) -> bool:
    """Check only the sampled bit, a tenth of the cost of parsing: most events are not sampled."""
    return _UNSAMPLED.fullmatch(headers.get("traceparent", "")) is not None


def _span_context(headers: Mapping[str, str]) -> SpanContext:
    if "traceparent" not in headers:
        return trace.INVALID_SPAN_CONTEXT
    extracted = _PROPAGATOR.extract(headers, Context())
    return trace.get_current_span(extracted).get_span_context()


def _carrying(span: Span, headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``headers`` with the span's trace context; unchanged if the span is not recorded."""
    if not span.is_recording():
        return headers
    carrier = {name: value for name, value in headers.items() if name not in _TRACE_HEADERS}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier


def _judge(span: Span, outcome: PublishOutcome | HandlerResult, *, good: bool) -> None:
    name = type(outcome).__name__
    span.set_attribute(OUTCOME, name)
    if not good:
        span.set_attribute(ERROR_TYPE, name)
        span.set_status(StatusCode.ERROR)
