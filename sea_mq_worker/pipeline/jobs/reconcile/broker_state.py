"""Query the broker and the audit: bounds of streams, positions of consumers, replays and prunes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import StreamInfo, find_consumer, stream_info
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.operations.broker import broker
from sea_mq_worker.pipeline.jobs.reconcile.replays import AuditedReplay
from sea_mq_worker.pipeline.snapshot import Snapshot
from sea_mq_worker.pipeline.sources.jetstream.state import stored_message
from sea_mq_worker.settings import ConsumerSettings, Settings

_CLOCK = timedelta(hours=1)
"""Margin added to a time range of a stream, because the clocks of database and broker may differ."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPosition:
    """A durable consumer's configuration and progress.

    Attributes:
        filters: subject patterns; empty: all subjects.
        start_seq: the first sequence that the consumer covers.
        start_time: the earliest storage time that the consumer covers; None: any.
        settled_seq: all covered messages up to this sequence are acknowledged or exhausted.
    """

    stream: str
    durable: str
    filters: tuple[str, ...]
    start_seq: int
    start_time: datetime | None
    created: datetime
    settled_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """Bounds and retention of a stream.

    Attributes:
        state: the stream's current state.
        start_seq: the first sequence that is relevant for the compared time range.
        max_age_seconds: age at which the stream removes messages; None: never.
        drops: whether the stream may remove messages for other reasons than age.
    """

    state: StreamInfo
    start_seq: int
    max_age_seconds: float | None
    drops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Operators' actions that explain additional copies and missing rows.

    Attributes:
        outbox_pruned_before: rows published before this time may have been pruned; None: no prune.
        inbox_pruned_before: rows processed before this time may have been pruned; None: no prune.
        archived_before: rows published before this time may have been archived; None: no archive.
    """

    replays: Sequence[AuditedReplay]
    outbox_pruned_before: datetime | None
    inbox_pruned_before: datetime | None
    archived_before: datetime | None


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


def query_bounds(settings: Settings, stream: str, since: datetime | None = None) -> StreamBounds:
    """Query the bounds of a stream.

    Args:
        settings: settings for the connection to NATS.
        stream: the stream's name.
        since: ignore messages stored before this time; None: ignore none.

    Raises:
        BrokerUnavailableError: the broker did not respond.
        ContractError: the stream is missing.
    """

    async def query(connection: NatsConnection) -> StreamBounds:
        state = await stream_info(connection, stream)
        start = state.first_seq
        if since is not None:
            start = await _first_since(connection, state, since - _CLOCK)
        age = state.max_age_seconds or None
        return StreamBounds(state=state, start_seq=start, max_age_seconds=age, drops=_drops(state.config))

    return _query(settings, query)


def read_audit(held: Snapshot) -> Audit:
    """Read the operators' actions as of a snapshot."""
    rows = held.rows(load_queries("pipeline_reconcile", "actions")["actions"])
    actions = [(row["action"], row["at"], json.loads(row["selection"])) for row in rows]
    return Audit(
        replays=[
            AuditedReplay(at=at, selection=chosen) for action, at, chosen in actions if action == "replay"
        ],
        outbox_pruned_before=_latest(actions, "prune_outbox"),
        inbox_pruned_before=_latest(actions, "prune_inbox"),
        archived_before=_latest(actions, "archive"),
    )


def _latest(actions: Iterable[tuple[str, datetime, Mapping[str, Any]]], wanted: str) -> datetime | None:
    before = [datetime.fromisoformat(chosen["before"]) for action, _, chosen in actions if action == wanted]
    return max(before, default=None)


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
    policy = config.get("deliver_policy", "all")
    if policy == "all":
        return 1, None
    if policy == "by_start_sequence":
        return int(config["opt_start_seq"]), None
    if policy == "by_start_time":
        return 1, datetime.fromisoformat(config["opt_start_time"])
    return 1, created


def _drops(config: Mapping[str, Any]) -> bool:
    limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes"))
    return (
        config.get("retention", "limits") != "limits"
        or (limited and config.get("discard", "old") == "old")
        or config.get("max_msgs_per_subject", -1) > 0
        or bool(config.get("allow_msg_ttl"))
    )


async def _first_since(connection: NatsConnection, state: StreamInfo, since: datetime) -> int:
    """Find the first message stored at a time or later by binary search; times increase with sequences."""
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
