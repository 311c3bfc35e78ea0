"""How far back the streams that are consumed can deliver: inbox rows of that time must stay."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.operations.broker import broker
from sea_mq_worker.settings import Settings

_NOT_FOUND = 404
_CLOCKS = timedelta(hours=1)
"""How far the broker's clock may be ahead of the database's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverable:
    """A stream that may deliver (again) what was received ``since`` then."""

    stream: str
    since: datetime


async def oldest_deliverable(settings: Settings) -> Deliverable | None:
    """Return the stream of the configured consumers that reaches back furthest; None: none holds a message.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: asking is not permitted.
    """
    async with broker(settings) as connection:
        streams = {consumer.stream for consumer in settings.consumers}
        found = [await _first_of(connection, stream) for stream in sorted(streams)]
    return min(filter(None, found), key=lambda stream: stream.since, default=None)


async def _first_of(connection: NatsConnection, stream: str) -> Deliverable | None:
    try:
        state = (await api(connection, f"STREAM.INFO.{stream}"))["state"]
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        return None
    if not state["messages"]:
        return None
    return Deliverable(stream=stream, since=datetime.fromisoformat(state["first_ts"]) - _CLOCKS)
