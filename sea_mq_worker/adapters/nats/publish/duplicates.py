"""Judges events that the stream dropped as duplicates, by the message that it has under their id.

Another message there rejects the event: its id is taken. So does a message that cannot be read any more, at
the first attempt of an event, which cannot have stored it. Of a replayed event, the copy of its earlier
lifecycle is dated: the stream stores the event again once that copy has left the deduplication window.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.server_info import stream_info
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.domain.headers import is_same_message
from sea_mq_worker.domain.messages import InboundMessage, OutboundMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Rejected, Stored, Unknown

_AT_ONCE = 32


async def judge_duplicates(
    connection: NatsConnection,
    stream: str,
    messages: Sequence[OutboundMessage],
    outcomes: Sequence[PublishOutcome],
    deadline: float,
) -> list[PublishOutcome]:
    """Return the outcomes; a duplicate that the server does not return before the deadline is Unknown."""
    judged = list(outcomes)
    duplicates = [
        (index, message, outcome)
        for index, (message, outcome) in enumerate(zip(messages, outcomes, strict=True))
        if isinstance(outcome, Stored) and outcome.duplicate
    ]
    if not duplicates:
        return judged
    for index, _, outcome in duplicates:
        judged[index] = Unknown(f"the stream has the id, at {outcome.seq}, and was not read in time")
    turns = asyncio.Semaphore(_AT_ONCE)
    now: datetime | None = None

    async def judge(index: int, message: OutboundMessage, outcome: Stored) -> None:
        async with turns:
            try:
                copy = await read_back(connection, stream, "", outcome.seq)
                judged[index] = _judged(message, outcome, copy, now)
            except BrokerUnavailableError:
                return
            except ContractError as error:
                judged[index] = _without_copy(message, outcome, str(error))

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            if any(outcome.seq == message.earlier_seq for _, message, outcome in duplicates):
                with contextlib.suppress(WorkerError):
                    now = (await stream_info(connection, stream)).now
            async with asyncio.TaskGroup() as group:
                for duplicate in duplicates:
                    group.create_task(judge(*duplicate))
    return judged


def _judged(
    message: OutboundMessage, outcome: Stored, copy: InboundMessage | None, now: datetime | None
) -> PublishOutcome:
    if copy is None:
        return _without_copy(message, outcome, "it is gone")
    if not is_same_message(message, copy.subject, copy.payload, copy.headers):
        return Rejected(f"ID_TAKEN: the stream has another message under this id, at {outcome.seq}")
    if now is None or outcome.seq != message.earlier_seq:
        return outcome
    return outcome._replace(seconds_ago=max(0.0, (now - copy.stored_at).total_seconds()))


def _without_copy(message: OutboundMessage, outcome: Stored, why: str) -> PublishOutcome:
    """Take a message that cannot be read for the event's own where an earlier attempt may have stored it."""
    if message.repeated:
        return outcome
    return Rejected(
        f"ID_TAKEN: the stream knows this id from a message of another writer, at {outcome.seq}: {why}"
    )
