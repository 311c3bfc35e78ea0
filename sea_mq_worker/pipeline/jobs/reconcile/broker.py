"""Query the broker about streams and consumers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import ConsumerInfo, StreamInfo, find_consumer, stream_info
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.pipeline.sources.jetstream.state import query_nats, stored_message
from sea_mq_worker.settings import ConsumerSettings, Settings


def query_consumers(settings: Settings, consumers: Sequence[ConsumerSettings]) -> list[ConsumerInfo]:
    """Query configuration and progress of consumers.

    Raises:
        BrokerUnavailableError: the broker did not respond.
        ContractError: a consumer is missing.
    """

    async def query(connection: NatsConnection) -> list[ConsumerInfo]:
        return [await _consumer(connection, one.stream, one.durable) for one in consumers]

    return query_nats(settings, query) if consumers else []


def query_stream(settings: Settings, name: str, since: datetime | None) -> tuple[StreamInfo, int]:
    """Return a stream's state, and the sequence of the first message stored at a time or later.

    Raises:
        BrokerUnavailableError: the broker did not respond.
        ContractError: the stream is missing.
    """

    async def query(connection: NatsConnection) -> tuple[StreamInfo, int]:
        state = await stream_info(connection, name)
        return state, state.first_seq if since is None else await _first_since(connection, state, since)

    return query_nats(settings, query)


def may_drop_oldest(config: Mapping[str, Any]) -> bool:
    """Return whether a full stream removes its oldest messages."""
    is_limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes"))
    return is_limited and config.get("discard", "old") == "old"


def may_drop_any(config: Mapping[str, Any]) -> bool:
    """Return whether a stream may remove a message and keep older ones."""
    is_replaced = config.get("max_msgs_per_subject", -1) > 0 and not config.get("discard_new_per_subject")
    is_read_once = config.get("retention", "limits") != "limits"
    return is_replaced or is_read_once or bool(config.get("allow_msg_ttl"))


async def _consumer(connection: NatsConnection, stream: str, durable: str) -> ConsumerInfo:
    info = await find_consumer(connection, stream, durable)
    if info is None:
        raise ContractError(
            f"consumer {durable} of stream {stream} does not exist, so its messages cannot be determined: "
            "create it with `python -m sea_mq_worker streams apply`, or remove it from SEA_MQ_CONSUMERS"
        )
    return info


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
