"""Query a stream's leader about the stream and its messages."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.adapters.nats.server_info import StreamInfo, missing_stream, stream_info
from sea_mq_worker.connections.nats import open_nats
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 10.0
_NO_MESSAGE = 10037
_NO_STREAM = 10059

_T = TypeVar("_T")


def stream_state(settings: Settings, stream: str) -> StreamInfo:
    """Return the leader's state of a stream.

    Raises:
        BrokerUnavailableError: there is no answer now.
        ContractError: the stream is missing, or the settings do not let the pipeline ask.
    """
    return _query(settings, lambda connection: stream_info(connection, stream))


def message_time(settings: Settings, stream: str, seq: int) -> datetime | None:
    """Return when a message was stored; None: the stream does not have it.

    Raises:
        BrokerUnavailableError: there is no answer now.
        ContractError: the stream is missing, or the settings do not let the pipeline ask.
    """

    async def query(connection: NatsConnection) -> datetime | None:
        message = await stored_message(connection, stream, {"seq": seq})
        return None if message is None else datetime.fromisoformat(message["time"])

    return _query(settings, query)


async def stored_message(
    connection: NatsConnection, stream: str, which: dict[str, Any]
) -> dict[str, Any] | None:
    """Return a message in the format of STREAM.MSG.GET; None: the leader has no such message."""
    try:
        answer = await api(connection, f"STREAM.MSG.GET.{stream}", which)
    except ApiRefusedError as error:
        if error.err_code == _NO_MESSAGE:
            return None
        raise missing_stream(stream) if error.err_code == _NO_STREAM else error from error
    message: dict[str, Any] = answer["message"]
    return message


async def open_connection(settings: Settings) -> NatsConnection:
    """Connect to NATS; a failure reaches each pending request as its error.

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
    """Provide a connection during the block."""
    connection = await open_connection(settings)
    try:
        yield connection
    finally:
        await connection.close()


def _query(settings: Settings, request: Callable[[NatsConnection], Awaitable[_T]]) -> _T:
    async def query() -> _T:
        async with connected(settings) as connection:
            return await request(connection)

    return asyncio.run(query())
