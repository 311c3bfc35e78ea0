"""Detects acknowledged events that a stream lost: it was created again, restored or rolled back."""

from collections.abc import Sequence

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.server_info import stream_info
from sea_mq_worker.domain.headers import MSG_ID

RECONCILE = "python -m sea_mq_worker pipeline reconcile --requeue --reason 'the stream lost them'"
"""Command that lists the lost events and publishes them again."""


async def lost_since(
    connection: NatsConnection, stream: str, *, greatest: int, shared: int, some: Sequence[tuple[str, int]]
) -> str:
    """Return the evidence that events are lost whose rows are PUBLISHED; empty: there is none.

    An event that the stream has dropped by its limits is not lost, so that only another message in an
    event's place counts. The rows must have been read before.

    Args:
        connection: to ask.
        stream: that the rows name.
        greatest: sequence that a row names.
        shared: rows that name the same sequence as another.
        some: ids and sequences of rows to look up.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such stream, or asking is not permitted.
    """
    info = await stream_info(connection, stream)
    if greatest > info.last_seq:
        ends = f"the stream, made at {info.created}, ends at {info.last_seq}"
        return f"a row names sequence {greatest}, and {ends}"
    if shared:
        return f"{shared} rows name a sequence that a later row names, too"
    for event_id, seq in some:
        message = await read_back(connection, stream, "", seq)
        if message is not None and message.headers.get(MSG_ID) != event_id:
            return f"the stream has another message at {seq}, the sequence of event {event_id}"
    return ""
