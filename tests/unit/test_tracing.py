"""Traces: linked across the queue, carried on, and absent where the producer did not sample."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sea_mq_worker.inbox.message import Accepted, HandlerRequest, HandlerResult
from sea_mq_worker.nats.message import (
    OutboundMessage,
    PublishOutcome,
    SearchedId,
    SearchResult,
    Stored,
    Unknown,
)
from sea_mq_worker.telemetry.tracing import TracedHandler, TracedPublisher
from sea_mq_worker.testing.handler import InMemoryHandler, Respond, Unreachable
from tests.support.handlers import handler_request

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-00", "tracestate": "vendor=1"}
URL = "http://user:secret@handler.internal/handle?key=secret"
REQUEST = handler_request("m", subject="sea.event.t.v1", event_type="t")


@dataclass
class RecordingPublisher:
    """A publisher that keeps what it is given, and answers what it is told; told nothing, it raises."""

    answers: Sequence[PublishOutcome] = ()
    sent: list[OutboundMessage] = field(default_factory=list)
    connected: bool = True
    keeps_order: bool = True
    in_order: bool = False
    duplicate_window_seconds: float = 120.0
    max_payload: int = 1000

    async def read_duplicate_window(self) -> float:
        return self.duplicate_window_seconds

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        self.sent.append(OutboundMessage(id="", subject=subject, payload=payload, headers=headers))
        return self.answers[0]

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float, in_order: bool = False
    ) -> Sequence[PublishOutcome]:
        assert timeout_seconds == 1.0
        if not self.answers:
            raise ConnectionError
        self.in_order = in_order
        self.sent += messages
        return self.answers

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        return {each.id: Stored("S", int(each.since_seconds)) for each in wanted}


class Traces:
    def __init__(self) -> None:
        provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    def publisher(self, inner: RecordingPublisher) -> TracedPublisher:
        return TracedPublisher(inner=inner, tracer=self.tracer)

    def handler(self, inner: InMemoryHandler) -> TracedHandler:
        return TracedHandler(inner=inner, url=URL, tracer=self.tracer)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def of(self, kind: SpanKind) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.kind is kind)
        return span


@pytest.fixture
def traces() -> Traces:
    return Traces()


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def linked_traces(span: ReadableSpan) -> list[str]:
    return [f"{link.context.trace_id:032x}" for link in span.links]


@pytest.mark.clause("event-model-16")
async def test_a_publish_is_linked_to_the_producer_and_carries_its_own_context(traces: Traces) -> None:
    inner = RecordingPublisher([Stored("S", 7)])
    outcome = await traces.publisher(inner).publish("sea.event.t.v1", b"{}", SAMPLED | {"Nats-Msg-Id": "i"})
    span = traces.of(SpanKind.PRODUCER)
    assert outcome == Stored("S", 7)
    assert linked_traces(span) == [TRACE]
    assert span.parent is None
    assert inner.sent[0].headers == {"Nats-Msg-Id": "i", "traceparent": traceparent(span)}
    assert span.attributes is not None
    assert span.attributes["messaging.destination.name"] == "sea.event.t.v1"
    assert span.attributes["messaging.message.id"] == "i"


async def test_each_message_of_a_batch_has_its_own_span(traces: Traces) -> None:
    inner = RecordingPublisher([Stored("S", 1), Unknown("timeout"), Stored("S", 2)])
    messages = [
        OutboundMessage(id=str(number), subject="s", payload=b"1", headers=headers)
        for number, headers in enumerate((SAMPLED, {}, UNSAMPLED))
    ]
    outcomes = await traces.publisher(inner).publish_batch(messages, timeout_seconds=1.0, in_order=True)
    assert inner.in_order
    assert outcomes == [Stored("S", 1), Unknown("timeout"), Stored("S", 2)]
    assert [linked_traces(span) for span in traces.spans] == [[TRACE], []]
    assert [span.status.status_code for span in traces.spans] == [StatusCode.UNSET, StatusCode.ERROR]
    assert [m.headers.get("traceparent") for m in inner.sent] == [
        traceparent(traces.spans[0]),
        traceparent(traces.spans[1]),
        UNSAMPLED["traceparent"],
    ]
    assert [message.payload for message in inner.sent] == [b"1", b"1", b"1"]


async def test_what_the_producer_did_not_sample_passes_untouched(traces: Traces) -> None:
    inner = RecordingPublisher([Stored("S", 1)])
    await traces.publisher(inner).publish("s", b"{}", UNSAMPLED)
    handler = InMemoryHandler()
    request = REQUEST._replace(trace_headers=UNSAMPLED)
    await traces.handler(handler).handle_request(request)
    assert traces.spans == ()
    assert inner.sent[0].headers == UNSAMPLED
    assert handler.requests == [request]


async def test_a_context_that_cannot_be_read_is_none(traces: Traces) -> None:
    inner = RecordingPublisher([Stored("S", 1)])
    malformed = {"traceparent": f"00-{TRACE}-b7ad6b716920333-00"}
    await traces.publisher(inner).publish("s", b"{}", malformed)
    span = traces.of(SpanKind.PRODUCER)
    assert span.links == ()
    assert inner.sent[0].headers == {"traceparent": traceparent(span)}


@pytest.mark.parametrize(
    ("status", "outcome", "seen"), [(500, "Retry", None), (422, "Poison", 422), (200, "Accepted", 200)]
)
async def test_a_call_has_its_outcome_and_a_failed_one_marks_its_spans(
    traces: Traces, status: int, outcome: str, seen: int | None
) -> None:
    await traces.handler(InMemoryHandler(lambda *_: Respond(status=status))).handle_request(REQUEST)
    failed = status != 200
    wanted = StatusCode.ERROR if failed else StatusCode.UNSET
    assert {span.status.status_code for span in traces.spans} == {wanted}
    reported = traces.of(SpanKind.CLIENT).attributes or {}
    assert reported["sea_mq.outcome"] == outcome
    assert reported.get("error.type") == (outcome if failed else None)
    assert reported.get("http.response.status_code") == seen


class Broken(InMemoryHandler):
    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        raise ConnectionError(request.message_id)


async def test_a_call_that_raises_ends_its_spans(traces: Traces) -> None:
    message = OutboundMessage(id="i", subject="s", payload=b"1", headers={})
    with pytest.raises(ConnectionError):
        await traces.publisher(RecordingPublisher()).publish_batch([message], timeout_seconds=1.0)
    with pytest.raises(ConnectionError):
        await traces.handler(Broken()).handle_request(REQUEST)
    assert [span.kind for span in traces.spans] == [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER]


async def test_everything_else_of_a_publisher_passes_through(traces: Traces) -> None:
    publisher = traces.publisher(RecordingPublisher())
    assert publisher.connected
    assert publisher.keeps_order
    assert publisher.duplicate_window_seconds == await publisher.read_duplicate_window() == 120.0
    assert publisher.max_payload == 1000
    assert await publisher.find([SearchedId("i", 9.0)]) == {"i": Stored("S", 9)}


async def test_a_connection_alone_has_no_span(traces: Traces) -> None:
    assert await traces.handler(InMemoryHandler(lambda *_: Unreachable())).reach()
    assert traces.spans == ()


async def test_a_publish_follows_the_wait_in_the_outbox(traces: Traces) -> None:
    message = OutboundMessage(id="i", subject="s", payload=b"1", headers=SAMPLED, waited_seconds=90.0)
    inner = RecordingPublisher([Stored("S", 1)])
    await traces.publisher(inner).publish_batch([message], timeout_seconds=1.0)
    wait, publish = traces.of(SpanKind.INTERNAL), traces.of(SpanKind.PRODUCER)
    assert seconds(wait) == pytest.approx(90.0)
    assert wait.parent is None
    assert publish.parent == wait.get_span_context()
    assert linked_traces(wait) == linked_traces(publish) == [TRACE]
    assert wait.end_time is not None
    assert publish.start_time is not None
    assert wait.end_time <= publish.start_time


@pytest.mark.parametrize("waited_seconds", [2025 * 365.25 * 86400, math.inf])
async def test_a_wait_begins_in_1970_at_the_earliest(traces: Traces, waited_seconds: float) -> None:
    """An exporter cannot encode an earlier time, and loses the whole batch of spans."""
    message = OutboundMessage("i", "s", b"1", SAMPLED, waited_seconds=waited_seconds)
    await traces.publisher(RecordingPublisher([Stored("S", 1)])).publish_batch([message], timeout_seconds=1.0)
    assert traces.of(SpanKind.INTERNAL).start_time == 0


async def test_a_handler_call_is_inside_its_handling_which_follows_the_wait_in_the_stream(
    traces: Traces,
) -> None:
    inner, stored_at = InMemoryHandler(), datetime.fromtimestamp(time.time() - 30.0, UTC)
    request = REQUEST._replace(trace_headers=SAMPLED, stored_at=stored_at)
    assert await traces.handler(inner).handle_request(request) == Accepted(200)
    wait, process, client = map(traces.of, (SpanKind.INTERNAL, SpanKind.CONSUMER, SpanKind.CLIENT))
    assert 30.0 <= seconds(wait) < 60.0
    assert wait.parent is None
    assert process.parent == wait.get_span_context()
    assert client.parent == process.get_span_context()
    assert linked_traces(wait) == linked_traces(process) == [TRACE]
    assert inner.requests[0].trace_headers == {"traceparent": traceparent(client)}


async def test_a_server_whose_clock_is_ahead_makes_no_wait(traces: Traces) -> None:
    stored_at = datetime.fromtimestamp(time.time() + 3600.0, UTC)
    await traces.handler(InMemoryHandler()).handle_request(REQUEST._replace(stored_at=stored_at))
    assert [span.kind for span in traces.spans] == [SpanKind.CLIENT, SpanKind.CONSUMER]


async def test_the_handlers_address_is_shown_without_its_secrets(traces: Traces) -> None:
    await traces.handler(InMemoryHandler()).handle_request(REQUEST)
    reported = traces.of(SpanKind.CLIENT).attributes
    assert reported is not None
    assert reported["url.full"] == "http://handler.internal:80/handle"
    assert reported["server.address"] == "handler.internal"
    assert "secret" not in str([span.attributes for span in traces.spans])
