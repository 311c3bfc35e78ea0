"""Streams, consumers and stored messages as the server reports them: the only reader of JetStream's answers.

``config`` keeps the raw configuration, for comparisons with definition files and for options that a single
caller checks; every other module reads typed fields. Each request raises BrokerUnavailableError if the server
did not answer, and ContractError if the worker has no permission for it. ``find_`` returns None for what does
not exist; the others raise ContractError then, and name the fix.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api, reading
from sea_mq_worker.nats.errors import STREAMS_APPLY, ApiRefusedError
from sea_mq_worker.nats.message import InboundMessage, size_of, stored
from sea_mq_worker.nats.subjects import covers

READ_BYTES_MAX = 4 * 1024 * 1024
"""Cap on the bytes of messages that one call reads."""
_READS_MAX = 10
"""Cap on concurrent reads; fewer are made while the consumer's filter matches few messages."""
_NO_MESSAGE = 10037
_NOT_FOUND = 404
_NANOSECONDS = 1e9
_CLOCK_SECONDS = 60.0
"""Difference between the clocks of the database and the broker that a comparison allows."""
PULL_SECONDS_MIN = 0.1
"""Shortest useful max_expires of a consumer: an idle worker sends a pull request each time one expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream, from STREAM.INFO."""

    name: str
    created: str
    """As the server writes it; a different text means a different stream."""
    now: datetime
    """The server's clock when it answered."""
    clock_offset_seconds: float
    """The server's clock minus this machine's."""
    config: Mapping[str, Any]
    subjects: tuple[str, ...]
    copies: bool
    """It gets messages of other streams, which can have any subject."""
    replicas: int
    duplicate_window_seconds: float
    max_age_seconds: float
    allow_atomic: bool
    allow_direct: bool
    volatile: bool
    """It acknowledges before it stores; a crash of the server loses such messages."""
    unusable_reason: str
    """Why it takes no publishes; empty if it takes them."""
    transforms_subjects: bool
    """Messages are stored under other subjects than they were published to."""
    replaces: bool
    """A new message of a subject can drop an older one."""
    messages: int
    size_bytes: int
    first_seq: int
    """``last_seq + 1`` while the stream is empty."""
    first_time: datetime | None
    """When the first message was stored; None while the stream is empty."""
    last_seq: int
    """The highest sequence ever given, even if its message was removed."""
    cluster: str
    leader: str
    offline: tuple[str, ...]
    """Names of replicas that do not answer."""

    @classmethod
    def from_json(cls, name: str, answer: Mapping[str, Any], *, local_time: float) -> "StreamInfo":
        """Parse an answer; ``local_time`` is this machine's clock at the request, in seconds of the epoch.

        Raises KeyError, TypeError or ValueError if the answer lacks a field or has a wrong one.
        """
        config, state, cluster = answer["config"], answer["state"], answer.get("cluster") or {}
        messages, last_seq = int(state["messages"]), int(state["last_seq"])
        now = datetime.fromisoformat(answer["ts"]) if "ts" in answer else None
        return cls(
            name=name,
            created=str(answer["created"]),
            now=now or datetime.fromisoformat(answer["created"]),
            clock_offset_seconds=now.timestamp() - local_time if now else 0.0,
            config=config,
            subjects=tuple(config.get("subjects") or ()),
            copies=bool(config.get("mirror") or config.get("sources")),
            replicas=int(config.get("num_replicas", 1)),
            duplicate_window_seconds=config.get("duplicate_window", 0) / _NANOSECONDS,
            max_age_seconds=config.get("max_age", 0) / _NANOSECONDS,
            allow_atomic=bool(config.get("allow_atomic")),
            allow_direct=bool(config.get("allow_direct")),
            volatile=config.get("storage") == "memory" or config.get("persist_mode") == "async",
            unusable_reason=_unusable_reason(name, config),
            transforms_subjects=bool(config.get("subject_transform")),
            replaces=config.get("max_msgs_per_subject", -1) > 0,
            messages=messages,
            size_bytes=int(state["bytes"]),
            first_seq=int(state["first_seq"]) if messages else last_seq + 1,
            first_time=datetime.fromisoformat(state["first_ts"]) if messages else None,
            last_seq=last_seq,
            cluster=cluster.get("name", ""),
            leader=cluster.get("leader", ""),
            offline=tuple(peer["name"] for peer in cluster.get("replicas") or () if peer.get("offline")),
        )

    def may_have_dropped(self, stored_at: datetime) -> bool:
        """Whether the stream itself may have removed a message that it stored then, by limits or retention.

        A stream that refuses messages when it is full removes only messages above the maximum age, and no
        limit empties a stream.
        """
        config = self.config
        if self.replaces or config.get("retention", "limits") != "limits" or config.get("allow_msg_ttl"):
            return True
        age_seconds = (self.now - stored_at).total_seconds()
        if self.max_age_seconds and age_seconds > self.max_age_seconds - _CLOCK_SECONDS:
            return True
        is_limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes"))
        return is_limited and config.get("discard", "old") == "old" and self.messages > 0

    def takes(self, subject: str) -> bool:
        """Whether messages published to ``subject``, which may be a pattern, are stored."""
        return any(covers(pattern, subject) for pattern in self.subjects)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A consumer, from CONSUMER.INFO or CONSUMER.LIST; 0 stands for no limit of pull requests."""

    stream: str
    name: str
    created: str
    """As the server writes it; a different text means a different consumer."""
    now: datetime
    """The server's clock when it answered."""
    config: Mapping[str, Any]
    filters: tuple[str, ...]
    """Subjects that it wants; empty if it wants all of the stream."""
    unfit: str
    """Fields by which the worker cannot consume, with their values; empty if it can."""
    ack_wait_seconds: float
    """Until an unacknowledged message is delivered again for the first time."""
    max_deliver: int
    """-1 for no limit, like ``max_ack_pending``."""
    max_ack_pending: int
    max_batch: int
    max_expires_seconds: float
    max_bytes: int
    delivered_seq: int
    """Stream sequence up to which it has delivered."""
    delivered_count: int
    """Deliveries, repeats included."""
    ack_floor: int
    """Stream sequence up to which every message is acknowledged."""
    pending: int
    """Messages still to deliver for the first time."""
    ack_pending: int
    redelivered: int
    """Those of ``ack_pending`` that were delivered more than once."""
    waiting: int
    """Open pull requests."""
    is_paused: bool
    paused_seconds: float
    """Time left of a pause."""
    pause_until: str
    """As the server writes it."""
    delivered_at: datetime
    """Time of the latest delivery, or of the creation before the first delivery."""
    ack_floor_at: datetime
    """Time when ``ack_floor`` last rose, or of the creation before it first rose."""
    leader: str
    """Name of the server that leads it; empty without a cluster."""

    @classmethod
    def from_json(cls, stream: str, answer: Mapping[str, Any]) -> "ConsumerInfo":
        """Parse an answer, or an entry of a list; raise as for a stream."""
        config, delivered, floor = answer["config"], answer["delivered"], answer["ack_floor"]
        created, one = str(answer["created"]), config.get("filter_subject")
        ack_wait = (config.get("backoff") or [config.get("ack_wait", 0)])[0]
        is_paused = bool(answer.get("paused"))
        return cls(
            stream=stream,
            name=str(answer["name"]),
            created=created,
            now=datetime.fromisoformat(answer.get("ts", created)),
            config=config,
            filters=tuple(config.get("filter_subjects") or ([one] if one else ())),
            unfit=_unfit(config),
            ack_wait_seconds=ack_wait / _NANOSECONDS,
            max_deliver=config.get("max_deliver", -1),
            max_ack_pending=config.get("max_ack_pending", -1),
            max_batch=config.get("max_batch", 0),
            max_expires_seconds=config.get("max_expires", 0) / _NANOSECONDS,
            max_bytes=config.get("max_bytes", 0),
            delivered_seq=int(delivered["stream_seq"]),
            delivered_count=int(delivered["consumer_seq"]),
            ack_floor=int(floor["stream_seq"]),
            pending=int(answer["num_pending"]),
            ack_pending=int(answer["num_ack_pending"]),
            redelivered=int(answer.get("num_redelivered", 0)),
            waiting=int(answer.get("num_waiting", 0)),
            is_paused=is_paused,
            paused_seconds=answer.get("pause_remaining", 0) / _NANOSECONDS if is_paused else 0.0,
            pause_until=str(config.get("pause_until", "")),
            delivered_at=datetime.fromisoformat(delivered.get("last_active") or created),
            ack_floor_at=datetime.fromisoformat(floor.get("last_active") or created),
            leader=str((answer.get("cluster") or {}).get("leader", "")),
        )

    def wants(self, subject: str) -> bool:
        """Whether a filter covers ``subject``, which may be a pattern."""
        return any(covers(pattern, subject) for pattern in self.filters or (">",))


async def find_stream(
    connection: NatsConnection, name: str, *, timeout_seconds: float = 5.0
) -> StreamInfo | None:
    subject, began = f"STREAM.INFO.{name}", time.time()
    answer = await _found(connection, subject, timeout_seconds=timeout_seconds)
    local_time = (began + time.time()) / 2
    if answer is None:
        return None
    with reading(subject):
        return StreamInfo.from_json(name, answer, local_time=local_time)


async def stream_info(connection: NatsConnection, name: str, *, timeout_seconds: float = 5.0) -> StreamInfo:
    found = await find_stream(connection, name, timeout_seconds=timeout_seconds)
    if found is None:
        raise missing_stream(connection, name)
    return found


def missing_stream(connection: NatsConnection, name: str) -> ContractError:
    if domain := connection.undeclared_domain:
        return ContractError(
            f"stream {name} does not exist in the JetStream domain {domain} of the connected server: "
            f"set SEA_MQ_NATS_JETSTREAM_DOMAIN to the domain that has it, or to {domain} to create it there"
        )
    return ContractError(
        f"stream {name} does not exist: `nats stream ls` lists the existing ones; "
        f"{STREAMS_APPLY} creates the worker's own"
    )


async def find_consumer(connection: NatsConnection, stream: str, name: str) -> ConsumerInfo | None:
    subject = f"CONSUMER.INFO.{stream}.{name}"
    answer = await _found(connection, subject)
    if answer is None:
        return None
    with reading(subject):
        return ConsumerInfo.from_json(stream, answer)


async def consumer_info(connection: NatsConnection, stream: str, name: str) -> ConsumerInfo:
    found = await find_consumer(connection, stream, name)
    if found is None:
        raise ContractError(
            f"consumer {name} of stream {stream} does not exist: create it with {STREAMS_APPLY}, or "
            f"`nats consumer add {stream} --config FILE`"
        )
    return found


async def durable_consumers(connection: NatsConnection, stream: str) -> Sequence[ConsumerInfo]:
    """Request all durable consumers of a stream, page by page."""
    subject, found = f"CONSUMER.LIST.{stream}", list[ConsumerInfo]()
    while True:
        page = await api(connection, subject, {"offset": len(found)})
        infos = page.get("consumers") or []
        with reading(subject):
            found += [ConsumerInfo.from_json(stream, info) for info in infos]
            is_last = not infos or len(found) >= page["total"]
        if is_last:
            return [info for info in found if info.config.get("durable_name")]


async def subjects_in(connection: NatsConnection, stream: str) -> set[str]:
    """Request the subjects of all messages in a stream, page by page; the stream must exist."""
    subject, found = f"STREAM.INFO.{stream}", set[str]()
    while True:
        request = {"subjects_filter": ">", "offset": len(found)}
        answer = await _found(connection, subject, request)
        if answer is None:
            raise missing_stream(connection, stream)
        with reading(subject):
            page = answer["state"].get("subjects") or {}
            found |= page.keys()
            if not page or len(found) >= answer.get("total", 0):
                return found


async def streams_taking(connection: NatsConnection, subject: str) -> Sequence[str]:
    """Request the names of the streams that store messages of ``subject``."""
    answer = await api(connection, "STREAM.NAMES", {"subject": subject})
    return answer.get("streams") or []


async def read_on(
    connection: NatsConnection, info: ConsumerInfo, after_seq: int, limit: int
) -> Sequence[InboundMessage]:
    """Read the next messages behind a sequence that the consumer wants, up to a few MB of them."""
    seq, found, width = after_seq, list[InboundMessage](), _READS_MAX
    while len(found) < limit and size_of(found) < READ_BYTES_MAX:
        reads = [read_next(connection, info, seq + 1 + place) for place in range(width)]
        read = {message.seq: message for message in await asyncio.gather(*reads) if message is not None}
        if not read:
            break
        found += [read[number] for number in sorted(read)]
        seq, width = found[-1].seq, min(2 * len(read), _READS_MAX)
    return found[:limit]


async def read_next(
    connection: NatsConnection, consumer: ConsumerInfo, seq: int, *, deliveries: int = 0
) -> InboundMessage | None:
    """Read the first message at or after a sequence that the consumer wants."""
    reads = [
        read_back(connection, consumer.stream, consumer.name, seq, deliveries=deliveries, next_of=subject)
        for subject in consumer.filters or (">",)
    ]
    found = filter(None, await asyncio.gather(*reads))
    return min(found, key=attrgetter("seq"), default=None)


async def read_back(
    connection: NatsConnection,
    stream: str,
    durable: str,
    seq: int,
    *,
    deliveries: int = 0,
    reply: str = "",
    next_of: str = "",
) -> InboundMessage | None:
    """Read one message as if it had been delivered; None if the stream does not have it.

    ``next_of``: read the first message of these subjects at or after the sequence. Raise
    BrokerUnavailableError without an answer, and ContractError without the stream or the right to read it.
    """
    subject, which = f"STREAM.MSG.GET.{stream}", {"seq": seq} | ({"next_by_subj": next_of} if next_of else {})
    try:
        answer = await api(connection, subject, which)
    except ApiRefusedError as error:
        if error.err_code != _NO_MESSAGE:
            raise
        return None
    with reading(subject):
        return stored(answer["message"], stream=stream, consumer=durable, deliveries=deliveries, reply=reply)


async def _found(
    connection: NatsConnection,
    subject: str,
    payload: Mapping[str, Any] | None = None,
    *,
    timeout_seconds: float = 5.0,
) -> dict[str, Any] | None:
    try:
        return await api(connection, subject, payload, timeout_seconds=timeout_seconds)
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        return None


def _unfit(config: Mapping[str, Any]) -> str:
    wrong = [field for field in ("deliver_subject", "headers_only", "priority_policy") if config.get(field)]
    if config.get("ack_policy") != "explicit":
        wrong.append("ack_policy")
    if 0 < config.get("max_expires", 0) < PULL_SECONDS_MIN * _NANOSECONDS:
        wrong.append("max_expires")
    return ", ".join(f"{field} is {config.get(field)}" for field in wrong)


def _unusable_reason(stream: str, config: Mapping[str, Any]) -> str:
    if config.get("sealed"):
        return f"stream {stream} is sealed: name another one, or delete it and create it with {STREAMS_APPLY}"
    if config.get("no_ack"):
        return f"stream {stream} acknowledges nothing (no_ack); set that to false with {STREAMS_APPLY}"
    return ""
