"""Every span of the worker; attributes are OpenTelemetry's semantic conventions' where these have one."""

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
        name: what it is called; `{subject}` stands for the message's.
        kind: OpenTelemetry's.
        parent: the span that it is in, or none: it begins a trace.
        linked: it has a link to the context that came with the event or message, where there was one.
        meaning: what takes the time that it measures.
        attributes: that it always has.
        sometimes: that it has where they are known.
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
    "From the event's creation to its publishing: the time in the outbox.",
    (SYSTEM, DESTINATION, MESSAGE_ID),
)
PUBLISH = SpanKind(
    "publish {subject}",
    "PRODUCER",
    "outbox wait",
    True,
    "From sending to the stream's acknowledgement; the message carries this span's context.",
    (SYSTEM, OPERATION, OPERATION_TYPE, DESTINATION, MESSAGE_ID, BODY_SIZE, REPEATED, OUTCOME),
    (STREAM, STREAM_SEQ, ERROR_TYPE),
)
STREAM_WAIT = SpanKind(
    "stream wait",
    "INTERNAL",
    "",
    True,
    "From the message's storing in the stream, by the server's clock, to the call: "
    "the time in the stream, waits between attempts included.",
    (SYSTEM, DESTINATION, MESSAGE_ID),
)
PROCESS = SpanKind(
    "process {subject}",
    "CONSUMER",
    "stream wait",
    True,
    "One handling of a message.",
    (SYSTEM, OPERATION, OPERATION_TYPE, DESTINATION, GROUP, MESSAGE_ID, BODY_SIZE, OUTCOME),
    (ERROR_TYPE,),
)
POST = SpanKind(
    "POST",
    "CLIENT",
    "process {subject}",
    False,
    "The call of the handler, which is given this span's context.",
    (METHOD, SERVER, PORT, URL, OUTCOME),
    (STATUS, ERROR_TYPE),
)
SPANS = (OUTBOX_WAIT, PUBLISH, STREAM_WAIT, PROCESS, POST)

RESOURCE = {
    "service.name": "`sea_mq_worker {context}`, unless `OTEL_SERVICE_NAME` says otherwise",
    "service.version": "the worker's version",
    "service.instance.id": "the worker's name, as in leases, logs and `sea_mq_worker_info`",
}
"""Attributes of the resource, beside those of `OTEL_RESOURCE_ATTRIBUTES` and of the SDK itself."""
