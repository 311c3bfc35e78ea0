"""How a durable consumer stands, as its server tells."""

from dataclasses import dataclass

from sea_mq_worker.adapters.nats.connection import NatsConnection, api


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """From CONSUMER.INFO.

    Attributes:
        pending: messages that it has still to deliver.
        ack_pending: delivered, and not acknowledged yet.
        redelivered: of these, those that were delivered before.
        paused_seconds: how long it is still paused for; 0: it is not.
    """

    stream: str
    durable: str
    pending: int
    ack_pending: int
    ack_pending_max: int
    redelivered: int
    paused_seconds: float


async def consumer_state(connection: NatsConnection, stream: str, durable: str) -> ConsumerState:
    """Ask how a consumer stands.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such consumer, or asking is not permitted.
    """
    info = await api(connection, f"CONSUMER.INFO.{stream}.{durable}")
    return ConsumerState(
        stream=stream,
        durable=durable,
        pending=info["num_pending"],
        ack_pending=info["num_ack_pending"],
        ack_pending_max=info["config"].get("max_ack_pending", -1),
        redelivered=info["num_redelivered"],
        paused_seconds=info.get("pause_remaining", 0) / 1e9 if info.get("paused") else 0.0,
    )
