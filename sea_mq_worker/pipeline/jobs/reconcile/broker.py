"""Query the broker: bounds of streams and progress of consumers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import StreamInfo, find_consumer, stream_info
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.operations.broker import broker
from sea_mq_worker.pipeline.sources.jetstream.state import stored_message
from sea_mq_worker.settings import ConsumerSettings, Settings

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPosition:
    """A durable consumer's configuration and progress.

    Attributes:
        filters: subject patterns, any of which may match; empty: all subjects.
        start_seq: the first sequence that the consumer covers.
        start_time: the earliest storage time that the consumer covers; None: any.
        created: the consumer's creation time; it never received messages that the stream had removed by then.
        settled_seq: all covered messages up to this sequence are acknowledged or exhausted.
    """

    stream: str
    durable: str
    filters: tuple[str, ...]
    start_seq: int
    start_time: datetime | None
    created: datetime
    settled_seq: int


def query_positions(settings: Settings, consumers: Iterable[ConsumerSettings]) -> list[ConsumerPosition]:
    """Query the progress of consumers.

    Raises:
        BrokerUnavailableError: the broker did not respond.
        ContractError: a consumer is missing.
    """
    wanted = list(consumers)

    async def query(connection: NatsConnection) -> list[ConsumerPosition]:
        return [await _position(connection, one.stream, one.durable) for one in wanted]

    return _query(settings, query) if wanted else []


def query_start(settings: Settings, stream: str, since: datetime | None) -> tuple[StreamInfo, int]:
    """Return a stream's state, and the sequence of the first message stored at a time or later.

    Raises:
        BrokerUnavailableError: the broker did not respond.
        ContractError: the stream is missing.
    """

    async def query(connection: NatsConnection) -> tuple[StreamInfo, int]:
        state = await stream_info(connection, stream)
        return state, state.first_seq if since is None else await _first_since(connection, state, since)

    return _query(settings, query)


def may_drop(config: Mapping[str, Any]) -> bool:
    """Return whether a stream may remove messages for other reasons than age."""
    limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes"))
    return (
        config.get("retention", "limits") != "limits"
        or (limited and config.get("discard", "old") == "old")
        or config.get("max_msgs_per_subject", -1) > 0
        or bool(config.get("allow_msg_ttl"))
    )


async def _position(connection: NatsConnection, stream: str, durable: str) -> ConsumerPosition:
    info = await find_consumer(connection, stream, durable)
    if info is None:
        raise ContractError(
            f"consumer {durable} of stream {stream} does not exist, so its messages cannot be determined: "
            "create it with `python -m sea_mq_worker streams apply`, or remove it from SEA_MQ_CONSUMERS"
        )
    created = datetime.fromisoformat(info.created)
    start_seq, start_time = _start(info.config, created)
    return ConsumerPosition(
        stream=stream,
        durable=durable,
        filters=info.filters,
        start_seq=start_seq,
        start_time=start_time,
        created=created,
        settled_seq=info.ack_floor,
    )


def _start(config: Mapping[str, Any], created: datetime) -> tuple[int, datetime | None]:
    """Return the consumer's start; for policies that begin with the last messages, its creation time."""
    match config.get("deliver_policy", "all"):
        case "all":
            return 1, None
        case "by_start_sequence":
            return int(config["opt_start_seq"]), None
        case "by_start_time":
            return 1, datetime.fromisoformat(config["opt_start_time"])
        case _:
            return 1, created


async def _first_since(connection: NatsConnection, state: StreamInfo, since: datetime) -> int:
    """Find the first message by binary search; times increase with sequences."""
    low, high = state.first_seq, state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        found = await stored_message(connection, state.name, {"seq": middle, "next_by_subj": ">"})
        if found is None or datetime.fromisoformat(found["time"]) >= since:
            high = middle
        else:
            low = int(found["seq"]) + 1
    return low


def _query(settings: Settings, request: Callable[[NatsConnection], Awaitable[_T]]) -> _T:
    async def query() -> _T:
        async with broker(settings) as connection:
            return await request(connection)

    return asyncio.run(query())
