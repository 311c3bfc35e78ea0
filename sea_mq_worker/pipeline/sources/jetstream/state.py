"""What a stream's leader says of the stream: for whoever plans what to read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.connections.nats import open_nats
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 10.0
_NO_MESSAGE = 10037
_NO_STREAM = 10059

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream as it is now.

    Attributes:
        stream: its name.
        created: when it was created, as the server tells it; another text, another stream.
        first_seq: the first sequence that is there; ``last_seq + 1`` where there is none.
        first_time: when the first message was stored; None where there is none.
        last_seq: the last sequence ever given, also where its message is gone; 0 at the beginning.
        last_time: when the last message was stored; None before the first.
        messages: how many there are.
        size: bytes of all of them, as the server counts them.
        allow_direct: any replica may answer for a message.
    """

    stream: str
    created: str
    first_seq: int
    first_time: datetime | None
    last_seq: int
    last_time: datetime | None
    messages: int
    size: int
    allow_direct: bool


def stream_state(settings: Settings, stream: str) -> StreamState:
    """Ask the leader about a stream.

    Raises:
        BrokerUnavailableError: there is no answer now.
        ContractError: the stream is missing, or the settings do not let the pipeline ask.
    """
    return _asked(settings, lambda connection: state_of(connection, stream))


def message_time(settings: Settings, stream: str, seq: int) -> datetime | None:
    """Ask the leader when a message was stored; None: the stream does not hold it.

    Raises:
        BrokerUnavailableError: there is no answer now.
        ContractError: the stream is missing, or the settings do not let the pipeline ask.
    """

    async def ask(connection: NatsConnection) -> datetime | None:
        message = await stored_message(connection, stream, {"seq": seq})
        return None if message is None else datetime.fromisoformat(message["time"])

    return _asked(settings, ask)


async def state_of(connection: NatsConnection, stream: str) -> StreamState:
    """Do what ``stream_state`` does, over a connection that is there."""
    try:
        info = await api(connection, f"STREAM.INFO.{stream}")
    except ApiRefusedError as error:
        raise _explained(error, stream) from error
    state = info["state"]
    messages = int(state["messages"])
    last_seq = int(state["last_seq"])
    return StreamState(
        stream=stream,
        created=str(info["created"]),
        first_seq=int(state["first_seq"]) if messages else last_seq + 1,
        first_time=datetime.fromisoformat(state["first_ts"]) if messages else None,
        last_seq=last_seq,
        last_time=datetime.fromisoformat(state["last_ts"]) if last_seq else None,
        messages=messages,
        size=int(state["bytes"]),
        allow_direct=bool(info["config"].get("allow_direct")),
    )


async def stored_message(
    connection: NatsConnection, stream: str, which: dict[str, Any]
) -> dict[str, Any] | None:
    """Ask the leader for a message, as STREAM.MSG.GET has it; None: the leader holds no such message."""
    try:
        answer = await api(connection, f"STREAM.MSG.GET.{stream}", which)
    except ApiRefusedError as error:
        if error.err_code == _NO_MESSAGE:
            return None
        raise _explained(error, stream) from error
    message: dict[str, Any] = answer["message"]
    return message


async def open_connection(settings: Settings) -> NatsConnection:
    """Connect to NATS; who waits for an answer there is told of trouble by its error.

    Raises:
        BrokerUnavailableError: no server answers.
        ContractError: a server refuses the connection.
    """
    return await open_nats(
        settings,
        purpose="pipeline",
        on_event=lambda _event, _text: None,
        connect_timeout_seconds=_CONNECT_SECONDS,
    )


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[NatsConnection]:
    """Connect for the length of a block."""
    connection = await open_connection(settings)
    try:
        yield connection
    finally:
        await connection.close()


def _explained(error: ApiRefusedError, stream: str) -> ContractError:
    if error.err_code != _NO_STREAM:
        return error
    return ContractError(
        f"stream {stream} does not exist: `nats stream ls` shows which do; "
        "`python -m sea_mq_worker streams apply` creates the worker's own"
    )


def _asked(settings: Settings, question: Callable[[NatsConnection], Awaitable[_T]]) -> _T:
    async def ask() -> _T:
        async with connected(settings) as connection:
            return await question(connection)

    return asyncio.run(ask())
