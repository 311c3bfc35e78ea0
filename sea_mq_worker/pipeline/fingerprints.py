"""Fingerprints that stand for messages in a comparison, so that no payload is shuffled.

``sent`` is 16 bytes that stand for subject, body and those headers that the row determines: MD5 of the
SHA-256 of subject and body, and of sorted lines of headers. It excludes the broker's headers (``nats-*``),
trace headers, which differ between attempts, and the source, which is a setting. ``content`` is the first 16
bytes of the inbox's content_hash, SHA-256 of subject and body.

What Spark's functions cannot express goes through the worker's own code: events with own headers or encoded
text, and messages without a plain ID. Only these odd rows leave the JVM, so rows are kept before they are
taken apart.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.inbox.message import COUNTER, MARKER, SCHEDULE, carries_no_event, recorded_as
from sea_mq_worker.nats.headers import AGGREGATE, EVENT_HEADERS, MSG_ID, EventHeader
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.outbox.event import OutboxEvent
from sea_mq_worker.outbox.message import outbound_message

_OF_TYPE = SimpleNamespace(event_type="event_type", event_version="event_version", source="source")
"""Names of columns, from which EVENT_HEADERS makes the names of the columns that it sends."""
_IGNORED = {
    header.name
    for header in EVENT_HEADERS
    if header.own or (header.made and header.of_type and header.made(_OF_TYPE) == _OF_TYPE.source)
} - {"ce-dataschema"}
_COMPARED = sorted(
    (header for header in EVENT_HEADERS if header.name not in {*_IGNORED, MSG_ID} and not header.own),
    key=lambda header: f"{header.name}:",
)
"""In the order of the lines that begin with their names."""
_SENT = sorted(
    (header.name for header in EVENT_HEADERS if header.name not in {*_IGNORED, MSG_ID}),
    key=lambda name: f"{name}:",
)
_USUAL = (
    *(header.name for header in EVENT_HEADERS),
    *("Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"),
)
"""The names that the worker sends, of rows without own headers."""
_BROKER = "nats-"
_SPECIAL = "\n(content-type|{}):".format("|".join(map(str.lower, (MARKER, SCHEDULE, COUNTER))))
"""Names of headers of messages that may carry no event, or an event in another form."""
_IGNORED_LINES = rf"\n({_BROKER}[^:\n]*|{'|'.join(sorted(_IGNORED))}):[^\n]*"

_TEXTS = ("aggregate_type", "aggregate_id", "partition_key")
OF_EVENT = (
    *("id", "seq", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "partition_key", "headers"),
)
"""The columns of a row that determine its message."""
_OF_MESSAGE = ("stream", "seq", "time", "subject", "headers", "data")

# ``$`` would match before a final line break in Java's regular expressions.
_PLAIN = r"\A[!#$&-~]*\z"
"""Text that the worker sends as it is: visible ASCII without quotation mark and per cent."""
_PLAIN_TYPE = r"\A[0-9A-Za-z_-]{1,99}(\.[0-9A-Za-z_-]{1,99}){0,5}\z"
_UUID = r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"


def uuid_bytes(text: Column) -> Column:
    """Return the 16 bytes of a UUID's text."""
    return F.unhex(F.replace(text, F.lit("-"), F.lit("")))


def uuid_text(data: Column) -> Column:
    """Return the text of a UUID's 16 bytes."""
    digits = F.lower(F.hex(data))
    return F.concat_ws("-", *(digits.substr(*part) for part in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))))


def of_events(
    events: DataFrame,
    kept: Sequence[str],
    keep: Callable[[DataFrame], DataFrame],
    *,
    context: str,
    source: str,
) -> DataFrame:
    """Return kept columns and ``sent`` of the messages that the worker sends; null: it sends none.

    Args:
        events: rows with the columns ``OF_EVENT``.
        kept: names of other columns.
        keep: persists rows, which are read twice.
        context: first token of the subjects.
        source: CloudEvents source.
    """
    names_subject = F.col("event_type").rlike(_PLAIN_TYPE) & (F.col("event_version") > 0)
    is_plain = names_subject & F.col("headers").isNull() & F.col("occurred_at").isNotNull()
    is_plain &= F.concat_ws("", *_TEXTS).rlike(_PLAIN)
    version = F.col("event_version").cast("string")
    subject = F.concat(F.lit(f"{context}.event."), "event_type", F.lit(".v"), version)
    content = _content(subject, F.encode("payload", "UTF-8"))
    lines = (F.concat(F.lit(f"\n{header.name}:"), _value(header)) for header in _COMPARED)
    odd = {name: F.col(name) for name in OF_EVENT} | {"payload": F.when(~names_subject, F.col("payload"))}
    odd["content"] = F.when(names_subject, content)
    rows = events.select(
        *kept,
        F.when(is_plain, _sent(content, F.concat_ws("", *lines))).alias("sent"),
        F.when(~is_plain, F.struct(*(column.alias(name) for name, column in odd.items()))).alias("odd"),
    )
    return _completed(keep(rows), partial(_encoded, context=context, source=source))


def of_messages(
    messages: DataFrame, kept: Sequence[str], keep: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """Return kept columns, fingerprints, and ``id``, under which the inbox records each message, as 16 bytes.

    Messages that carry no event are left out.

    Args:
        messages: rows of the source ``jetstream`` or of bronze.
        kept: names of other columns.
        keep: persists rows, which are read twice.
    """
    # Lambdas and regular expressions cost more than all the rest, so usual headers go without them.
    keys, values = F.col("headers.key"), F.col("headers.value")
    places = {name: F.array_position(keys, name) for name in _USUAL}
    is_usual = F.size("headers") == reduce(Column.__add__, ((at > 0).cast("int") for at in places.values()))
    lines = (F.concat(F.lit(f"\n{name}:"), F.get(values, places[name] - 1)) for name in _SENT)
    each = F.zip_with(keys, values, lambda key, text: F.concat_ws(":", F.lower(key), text))
    unusual = F.concat(F.lit("\n"), F.coalesce(F.array_join(F.sort_array(each), "\n"), F.lit("")))
    messages = messages.withColumns(
        {
            "usual": F.when(is_usual, F.concat_ws("", *lines)),
            "unusual": F.when(~F.coalesce(is_usual, F.lit(False)), unusual),
        }
    )
    text = F.coalesce("usual", F.regexp_replace("unusual", _IGNORED_LINES, ""))
    own_id = F.lower("message_id")
    is_special = F.coalesce(F.col("unusual").rlike(_SPECIAL), F.lit(False))
    may_be_structured = ~text.contains("\nce-") & F.contains("data", F.lit(b'"specversion"'))
    is_plain = F.coalesce(own_id.rlike(_UUID) & ~is_special & ~may_be_structured, F.lit(False))
    odd = {name: F.col(name) for name in _OF_MESSAGE}
    odd |= {"data": F.when(is_special | may_be_structured, F.col("data"))}
    content = _content(F.col("subject"), F.col("data"))
    rows = messages.select(
        *kept,
        F.when(is_plain, uuid_bytes(own_id)).alias("id"),
        F.unhex(content.substr(1, 32)).alias("content"),
        _sent(content, text).alias("sent"),
        F.when(~is_plain, F.struct(*(column.alias(name) for name, column in odd.items()))).alias("odd"),
    )
    return _completed(keep(rows), _identified)


def _value(header: EventHeader) -> Column:
    """Return the value that a row with plain texts gives a header; null: the header is not sent."""
    if header.made and header.of_type:
        text = header.made(_OF_TYPE)
        return F.col(text).cast("string") if hasattr(_OF_TYPE, text) else F.lit(text)
    if header.column == AGGREGATE:
        return F.concat_ws("/", *AGGREGATE.split("/"))
    if header.column == "id":
        return uuid_text(F.col("id"))
    if header.column == "occurred_at":
        moment = F.date_format("occurred_at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
        return F.concat(F.regexp_replace(moment, r"\.000000$", ""), F.lit("Z"))
    return F.nullif(F.col(header.column), F.lit(""))


def _content(subject: Column, body: Column) -> Column:
    parts = F.encode(subject, "UTF-8"), F.lit(b"\0"), F.coalesce(body, F.lit(b""))
    return F.sha2(F.concat(*parts), 256)


def _sent(content: Column, lines: Column) -> Column:
    return F.unhex(F.md5(F.concat(content, lines)))


def _completed(rows: DataFrame, make: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> DataFrame:
    """Give the rows with ``odd`` the columns that ``make`` returns of it, or leave them out."""
    plain = rows.where("odd IS NULL").drop("odd")
    made = rows.where("odd IS NOT NULL").mapInArrow(partial(_each_odd, make), plain.schema)
    return plain.unionByName(made)


def _each_odd(
    make: Callable[[dict[str, Any]], Mapping[str, Any] | None], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.select([name for name in batch.schema.names if name != "odd"])
        given = zip(rows.to_pylist(), batch.column("odd").to_pylist(), strict=True)
        made = [row | columns for row, odd in given if (columns := make(odd)) is not None]
        yield pa.RecordBatch.from_pylist(made, schema=rows.schema)


def _encoded(row: dict[str, Any], *, context: str, source: str) -> Mapping[str, Any]:
    content = row.pop("content")
    given = row | {"id": str(UUID(bytes=bytes(row["id"]))), "payload": (row["payload"] or "").encode()}
    event = OutboxEvent(**given, attempts=0, failures=0, age_seconds=0.0, attempted_seconds_ago=0.0)
    try:
        message = outbound_message(event, context=context, source=source)
    except InvalidEventError:
        return {"sent": None}
    lines = sorted(
        f"\n{name.lower()}:{value}"
        for name, value in message.headers.items()
        if not name.lower().startswith(_BROKER) and name.lower() not in _IGNORED
    )
    content = content or hashlib.sha256(message.subject.encode() + b"\0" + message.payload).hexdigest()
    return {"sent": hashlib.md5("".join([content, *lines]).encode(), usedforsecurity=False).digest()}


def _identified(row: dict[str, Any]) -> Mapping[str, Any] | None:
    message = InboundMessage(
        stream=row["stream"],
        seq=row["seq"],
        consumer="",
        subject=row["subject"],
        payload=row["data"] or b"",
        headers={header["key"]: header["value"] for header in row["headers"] or ()},
        stored_at=row["time"],
        deliveries=0,
        reply="",
    )
    return None if carries_no_event(message) else {"id": UUID(recorded_as(message)).bytes}
