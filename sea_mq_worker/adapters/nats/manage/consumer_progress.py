"""How far a consumer is with its stream."""

from collections.abc import Mapping
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.subject_match import covers
from sea_mq_worker.domain.missed_messages import ConsumerStanding


async def consumer_standing(connection: NatsConnection, stream: str, durable: str) -> ConsumerStanding:
    """Ask for the stream first: what leaves it in between shows at the next look.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such stream or consumer, or asking is not permitted.
    """
    source = await api(connection, f"STREAM.INFO.{stream}")
    info = await api(connection, f"CONSUMER.INFO.{stream}.{durable}")
    return ConsumerStanding(
        stream_created=source["created"],
        consumer_created=info["created"],
        first_seq=source["state"]["first_seq"],
        last_seq=source["state"]["last_seq"],
        delivered=info["delivered"]["stream_seq"],
        deliveries=info["delivered"]["consumer_seq"],
        pending=info["num_pending"],
        takes_all=_takes_all(source["config"], info["config"]),
        replaces=source["config"].get("max_msgs_per_subject", -1) > 0,
    )


def _takes_all(stream: Mapping[str, Any], consumer: Mapping[str, Any]) -> bool:
    filters = consumer.get("filter_subjects") or [consumer.get("filter_subject") or ">"]
    return all(any(covers(one, subject) for one in filters) for subject in stream.get("subjects") or [">"])
