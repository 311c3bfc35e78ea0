"""The oldest message of the consumed streams, and the backlogs of their consumers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.stored_messages import ConsumerState
from sea_mq_worker.operations.broker import stream_inspection
from sea_mq_worker.ports.operations import StreamInspection
from sea_mq_worker.settings import Settings

_CLOCKS = timedelta(hours=1)
"""Tolerance, since the broker's clock may be ahead of the database's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverable:
    """A stream that may redeliver messages received ``since`` this time."""

    stream: str
    since: datetime


async def oldest_deliverable(settings: Settings) -> Deliverable | None:
    """Return the consumed stream with the oldest message: younger inbox rows must stay.

    None: no stream holds a message.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: the request is not permitted.
    """
    async with stream_inspection(settings) as streams:
        return await oldest_of(streams, {consumer.stream for consumer in settings.consumers})


async def oldest_of(streams: StreamInspection, names: Collection[str]) -> Deliverable | None:
    """Return the stream with the oldest message; None: none of them holds a message."""
    found = [(await streams.first_stored_at(name), name) for name in sorted(names)]
    first, name = min(((at, name) for at, name in found if at), default=(None, ""))
    return Deliverable(stream=name, since=first - _CLOCKS) if first else None


async def consumer_states(settings: Settings) -> tuple[Sequence[ConsumerState], Sequence[str]]:
    """Return the states of the configured consumers, and those that could not be queried with the reason."""
    found: list[ConsumerState] = []
    not_checked: list[str] = []
    try:
        async with stream_inspection(settings) as streams:
            for wanted in settings.consumers:
                try:
                    found.append(await streams.consumer_state(wanted.stream, wanted.durable))
                except WorkerError as error:
                    not_checked.append(f"consumer {wanted.durable} of {wanted.stream}: {error}")
    except WorkerError as error:
        not_checked.append(f"streams: {error}")
    return found, not_checked
