"""Dates the earlier copy that made the stream drop a replayed event as a duplicate.

The stream stores the event again once that copy has left the deduplication window.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.consume.decoding import stored
from sea_mq_worker.adapters.nats.server_info import stream_info
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Stored

_AT_ONCE = 32


async def date_earlier_copies(
    connection: NatsConnection,
    stream: str,
    messages: Sequence[OutboundMessage],
    outcomes: Sequence[PublishOutcome],
    deadline: float,
) -> list[PublishOutcome]:
    """Return the outcomes, with the age of each earlier copy that could be read before the deadline."""
    dated = list(outcomes)
    duplicates = [
        (index, outcome)
        for index, (message, outcome) in enumerate(zip(messages, outcomes, strict=True))
        if isinstance(outcome, Stored) and outcome.duplicate and outcome.seq == message.earlier_seq
    ]
    if not duplicates:
        return dated
    turns = asyncio.Semaphore(_AT_ONCE)

    async def date(index: int, outcome: Stored, now: datetime) -> None:
        async with turns:
            answer = await api(connection, f"STREAM.MSG.GET.{stream}", {"seq": outcome.seq})
        copy = stored(answer["message"], stream=stream, consumer="", deliveries=0)
        dated[index] = outcome._replace(seconds_ago=max(0.0, (now - copy.stored_at).total_seconds()))

    with contextlib.suppress(TimeoutError, WorkerError):
        async with asyncio.timeout_at(deadline):
            now = (await stream_info(connection, stream)).now
            asked = (date(index, outcome, now) for index, outcome in duplicates)
            await asyncio.gather(*asked, return_exceptions=True)
    return dated
