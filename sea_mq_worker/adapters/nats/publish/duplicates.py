"""Judges events that the stream dropped as duplicates, by the message that it has under their id.

Another message there rejects the event: its id is taken. Only the first attempt of an event is checked so,
because a duplicate at a later attempt is the worker's own. Of a replayed event, the copy of its earlier
lifecycle is dated: the stream stores the event again once that copy has left the deduplication window.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.server_info import stream_info
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.headers import is_same_message
from sea_mq_worker.domain.messages import InboundMessage, OutboundMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Rejected, Stored

_AT_ONCE = 32


async def judge_duplicates(
    connection: NatsConnection,
    stream: str,
    messages: Sequence[OutboundMessage],
    outcomes: Sequence[PublishOutcome],
    deadline: float,
) -> list[PublishOutcome]:
    """Return the outcomes; a duplicate that cannot be read before the deadline counts as the worker's own."""
    judged = list(outcomes)
    duplicates = [
        (index, message, outcome)
        for index, (message, outcome) in enumerate(zip(messages, outcomes, strict=True))
        if isinstance(outcome, Stored) and outcome.duplicate
        if not message.repeated or outcome.seq == message.earlier_seq
    ]
    if not duplicates:
        return judged
    copies: dict[int, InboundMessage] = {}
    turns = asyncio.Semaphore(_AT_ONCE)

    async def read(index: int, seq: int) -> None:
        with contextlib.suppress(WorkerError):
            async with turns:
                copy = await read_back(connection, stream, "", seq)
            if copy:
                copies[index] = copy

    now: datetime | None = None
    with contextlib.suppress(TimeoutError, WorkerError):
        async with asyncio.timeout_at(deadline):
            async with asyncio.TaskGroup() as group:
                for index, _, outcome in duplicates:
                    group.create_task(read(index, outcome.seq))
            if any(outcome.seq == message.earlier_seq for _, message, outcome in duplicates):
                now = (await stream_info(connection, stream)).now
    for index, message, outcome in duplicates:
        if copy := copies.get(index):
            judged[index] = _judged(message, outcome, copy, now)
    return judged


def _judged(
    message: OutboundMessage, outcome: Stored, copy: InboundMessage, now: datetime | None
) -> PublishOutcome:
    if not message.repeated and not is_same_message(message, copy.payload, copy.headers):
        return Rejected(f"ID_TAKEN: the stream has another message under this id, at {outcome.seq}")
    if now is None or outcome.seq != message.earlier_seq:
        return outcome
    return outcome._replace(seconds_ago=max(0.0, (now - copy.stored_at).total_seconds()))
