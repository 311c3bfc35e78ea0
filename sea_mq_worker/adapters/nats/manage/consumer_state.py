"""How far a durable consumer is with its stream."""

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import consumer_info, stream_info
from sea_mq_worker.domain.missed_messages import ConsumerStanding
from sea_mq_worker.domain.stored_messages import ConsumerState


async def consumer_state(connection: NatsConnection, stream: str, durable: str) -> ConsumerState:
    """Request a consumer's backlog.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: the consumer does not exist, or the worker has no permission to request it.
    """
    info = await consumer_info(connection, stream, durable)
    return ConsumerState(
        stream=stream,
        durable=durable,
        pending=info.pending,
        ack_pending=info.ack_pending,
        ack_pending_max=info.max_ack_pending,
        redelivered=info.redelivered,
        paused_seconds=info.paused_seconds,
    )


async def consumer_standing(connection: NatsConnection, stream: str, durable: str) -> ConsumerStanding:
    """Request a consumer's progress, the stream's first: later removals show in the next comparison.

    Raises as ``consumer_state`` does.
    """
    source = await stream_info(connection, stream)
    info = await consumer_info(connection, stream, durable)
    return ConsumerStanding(
        stream_created=source.created,
        consumer_created=info.created,
        first_seq=source.first_seq,
        last_seq=source.last_seq,
        delivered=info.delivered_seq,
        deliveries=info.delivered_count,
        pending=info.pending,
        takes_all=all(map(info.wants, source.subjects or (">",))),
        replaces=source.replaces,
    )
