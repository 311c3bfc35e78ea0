"""Counts messages that the streams have not delivered yet, which no table holds."""

from collections.abc import Sequence

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.stored_messages import ConsumerState
from sea_mq_worker.operations.broker import stream_inspection
from sea_mq_worker.settings import Settings


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
