"""The facts about JetStream that doctor judges; asking changes nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import ApiRefusedError

_NOT_FOUND = 404
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDiagnostics:
    """A stream as STREAM.INFO tells it; ``clock_offset_seconds``: the server's clock minus this machine's."""

    name: str
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    cluster: Mapping[str, Any]
    clock_offset_seconds: float

    @property
    def subjects(self) -> Sequence[str]:
        """What it takes."""
        return self.config.get("subjects") or []

    @property
    def replicas(self) -> int:
        """How many copies it has."""
        return int(self.config.get("num_replicas", 1))

    @property
    def duplicate_window_seconds(self) -> float:
        """How long it remembers an id."""
        return float(self.config.get("duplicate_window", 0) / _NANOSECONDS)

    @property
    def max_age_seconds(self) -> float:
        """How long it keeps a message; 0: for ever."""
        return float(self.config.get("max_age", 0) / _NANOSECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDiagnostics:
    """A consumer as CONSUMER.INFO tells it; ``now`` is the server's clock."""

    stream: str
    name: str
    config: Mapping[str, Any]
    info: Mapping[str, Any]
    now: datetime

    @property
    def ack_wait_seconds(self) -> float:
        """How long the server waits for an acknowledgement before it delivers again."""
        backoff = self.config.get("backoff") or [self.config.get("ack_wait", 0)]
        return float(backoff[0] / _NANOSECONDS)

    @property
    def filters(self) -> Sequence[str]:
        """Which of the stream's subjects it takes; none: all."""
        several = self.config.get("filter_subjects")
        one = self.config.get("filter_subject")
        return several or ([one] if one else [])

    def seconds_since(self, what: str) -> float:
        """Return how long ago ``delivered`` or ``ack_floor`` last moved, or else the consumer was created."""
        moment = self.info[what].get("last_active") or self.info["created"]
        return (self.now - datetime.fromisoformat(moment)).total_seconds()


async def stream_diagnostics(connection: NatsConnection, name: str) -> StreamDiagnostics | None:
    """Ask about a stream; None: there is none.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: asking is not permitted.
    """
    began = time.time()
    info = await _info(connection, f"STREAM.INFO.{name}")
    if info is None:
        return None
    here = (began + time.time()) / 2
    told = info.get("ts")
    return StreamDiagnostics(
        name=name,
        config=info["config"],
        state=info["state"],
        cluster=info.get("cluster") or {},
        clock_offset_seconds=datetime.fromisoformat(told).timestamp() - here if told else 0.0,
    )


async def consumer_diagnostics(
    connection: NatsConnection, stream: str, name: str
) -> ConsumerDiagnostics | None:
    """Ask about a consumer; None: there is none. Raises as ``stream_diagnostics`` does."""
    info = await _info(connection, f"CONSUMER.INFO.{stream}.{name}")
    if info is None:
        return None
    now = datetime.fromisoformat(info.get("ts", info["created"]))
    return ConsumerDiagnostics(stream=stream, name=name, config=info["config"], info=info, now=now)


async def takers(connection: NatsConnection, subject: str) -> Sequence[str]:
    """Name the streams that take a message of ``subject``. Raises as ``stream_diagnostics`` does."""
    answer = await api(connection, "STREAM.NAMES", {"subject": subject})
    return answer.get("streams") or []


async def _info(connection: NatsConnection, subject: str) -> dict[str, Any] | None:
    try:
        return await api(connection, subject)
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        return None
