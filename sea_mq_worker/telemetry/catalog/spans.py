"""Catalog of the worker's spans; attributes follow OpenTelemetry's semantic conventions where one exists."""

from dataclasses import dataclass

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
class SpanKind:
    """One kind of span.

    Attributes:
        name: the span's name; `{subject}` is replaced by the message's.
        kind: span kind of OpenTelemetry.
        parent: name of the parent span; empty: the span begins a trace.
        linked: whether the span links to the trace context of the event or message.
        meaning: the measured interval.
        attributes: attributes of every such span.
        sometimes: attributes that are set when known.
    """

    name: str
    kind: str
    parent: str
    linked: bool
    meaning: str
    attributes: tuple[str, ...]
    sometimes: tuple[str, ...] = ()


OUTBOX_WAIT = SpanKind(
    "outbox wait",
    "INTERNAL",
    "",
    True,
    "Time in the outbox, from the event's creation to its publish.",
    (SYSTEM, DESTINATION, MESSAGE_ID),
)
PUBLISH = SpanKind(
    "publish {subject}",
    "PRODUCER",
    "outbox wait",
    True,
    "Time from sending to the stream's acknowledgement; the message carries this span's context.",
    (SYSTEM, OPERATION, OPERATION_TYPE, DESTINATION, MESSAGE_ID, BODY_SIZE, REPEATED, OUTCOME),
    (STREAM, STREAM_SEQ, ERROR_TYPE),
)
STREAM_WAIT = SpanKind(
    "stream wait",
    "INTERNAL",
    "",
    True,
    "Time in the stream, by the server's clock, from storing to the handler call; "
    "it includes waits between attempts.",
    (SYSTEM, DESTINATION, MESSAGE_ID),
)
PROCESS = SpanKind(
    "process {subject}",
    "CONSUMER",
    "stream wait",
    True,
    "One handling attempt of a message.",
    (SYSTEM, OPERATION, OPERATION_TYPE, DESTINATION, GROUP, MESSAGE_ID, BODY_SIZE, OUTCOME),
    (ERROR_TYPE,),
)
POST = SpanKind(
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
