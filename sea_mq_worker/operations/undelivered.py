"""What the streams have not delivered yet: it is in no table, and waits all the same."""

from collections.abc import Sequence

from sea_mq_worker.adapters.nats.manage.consumer_state import ConsumerState, consumer_state
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.operations.broker import broker
from sea_mq_worker.settings import Settings


async def consumer_states(settings: Settings) -> tuple[Sequence[ConsumerState], Sequence[str]]:
    """Ask the broker how the consumers of the settings stand; also tell which could not be asked, and why."""
    found: list[ConsumerState] = []
    unseen: list[str] = []
    try:
        async with broker(settings) as connection:
            for wanted in settings.consumers:
                try:
                    found.append(await consumer_state(connection, wanted.stream, wanted.durable))
                except WorkerError as error:
                    unseen.append(f"consumer {wanted.durable} of {wanted.stream}: {error}")
    except WorkerError as error:
        unseen.append(f"streams: {error}")
    return found, unseen
