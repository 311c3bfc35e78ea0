"""Rejects an event whose id another message of the stream already has.

The stream drops such an event as a duplicate and acknowledges it. Only the first attempt of an event is
checked, because a duplicate at a later attempt is the worker's own.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.consume.decoding import stored
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.headers import is_same_message
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Rejected, Stored

_AT_ONCE = 32


async def reject_conflicting_ids(
    connection: NatsConnection,
    stream: str,
    messages: Sequence[OutboundMessage],
    outcomes: Sequence[PublishOutcome],
    deadline: float,
) -> list[PublishOutcome]:
    """Return the outcomes; before the deadline, conflicting ids are checked and become Rejected."""
    checked = list(outcomes)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def check(index: int, message: OutboundMessage, seq: int) -> None:
        async with turns:
            if await _is_taken(connection, stream, message, seq):
                checked[index] = Rejected(f"ID_TAKEN: the stream has another message under this id, at {seq}")

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as group:
            for index, (message, outcome) in enumerate(zip(messages, outcomes, strict=True)):
                if isinstance(outcome, Stored) and outcome.duplicate and not message.repeated:
                    group.create_task(check(index, message, outcome.seq))
    return checked


async def _is_taken(connection: NatsConnection, stream: str, message: OutboundMessage, seq: int) -> bool:
    """Compare with the stored message; an unreadable one counts as the worker's own."""
    try:
        answer = await api(connection, f"STREAM.MSG.GET.{stream}", {"seq": seq})
    except WorkerError:
        return False
    found = stored(answer["message"], stream=stream, consumer="", deliveries=0)
    return not is_same_message(message, found.payload, found.headers)
