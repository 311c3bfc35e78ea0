"""What a publisher has to know of its stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import STREAMS_APPLY, ApiRefusedError
from sea_mq_worker.adapters.nats.publish.acks import number
from sea_mq_worker.domain.errors import ContractError

_NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """From STREAM.INFO; ``now`` is the server's clock, ``created`` tells a stream from its successor.

    ``forgetful``: it acknowledges what even the end of the server's process may take from it. ``useless``:
    why nothing can be published to it; empty where something can. ``renames``: it stores messages under other
    subjects than they were published to.
    """

    duplicate_window_seconds: float
    allow_batched: bool
    allow_atomic: bool
    forgetful: bool
    useless: str
    last_seq: int
    renames: bool
    created: str
    now: datetime


async def stream_info(connection: NatsConnection, stream: str, *, timeout_seconds: float = 5.0) -> StreamInfo:
    """Ask the server about a stream.

    Raises:
        BrokerUnavailableError: it does not answer now.
        ContractError: the stream is missing, or the worker may not ask.
    """
    try:
        info = await api(connection, f"STREAM.INFO.{stream}", timeout_seconds=timeout_seconds)
    except ApiRefusedError as error:
        if error.code == _NOT_FOUND:
            raise ContractError(f"stream {stream} does not exist; create it with {STREAMS_APPLY}") from error
        raise
    config, state = info["config"], info["state"]
    return StreamInfo(
        duplicate_window_seconds=number(config, "duplicate_window") / 1e9,
        allow_batched=bool(config.get("allow_batched")),
        allow_atomic=bool(config.get("allow_atomic")),
        useless=_unusable_reason(stream, config),
        forgetful=config.get("storage") == "memory" or config.get("persist_mode") == "async",
        last_seq=number(state, "last_seq"),
        renames=bool(config.get("subject_transform")),
        created=str(info["created"]),
        now=datetime.fromisoformat(str(info.get("ts", info["created"]))),
    )


def _unusable_reason(stream: str, config: Mapping[str, Any]) -> str:
    if config.get("sealed"):
        return f"stream {stream} is sealed: name another one, or delete it and create it with {STREAMS_APPLY}"
    if config.get("no_ack"):
        return f"stream {stream} acknowledges nothing (no_ack); set that to false with {STREAMS_APPLY}"
    return ""
