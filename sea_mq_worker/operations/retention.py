"""The oldest message that a consumed stream can deliver: younger inbox rows must stay."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import find_stream
from sea_mq_worker.operations.broker import broker
from sea_mq_worker.settings import Settings

_CLOCKS = timedelta(hours=1)
"""Tolerance, since the broker's clock may be ahead of the database's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverable:
    """A stream that may redeliver messages received ``since`` this time."""

    stream: str
    since: datetime


async def oldest_deliverable(settings: Settings) -> Deliverable | None:
    """Return the consumed stream with the oldest message; None: no stream holds a message.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: the request is not permitted.
    """
    async with broker(settings) as connection:
        streams = {consumer.stream for consumer in settings.consumers}
        found = [await _first_of(connection, stream) for stream in sorted(streams)]
    return min(filter(None, found), key=lambda stream: stream.since, default=None)


async def _first_of(connection: NatsConnection, stream: str) -> Deliverable | None:
    info = await find_stream(connection, stream)
    if info is None or info.first_time is None:
        return None
    return Deliverable(stream=stream, since=info.first_time - _CLOCKS)
