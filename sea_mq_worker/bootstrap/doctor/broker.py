"""The facts about NATS, gathered by one connection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sea_mq_worker.adapters.nats import topology
from sea_mq_worker.adapters.nats.checkup import (
    ConsumerSeen,
    StreamSeen,
    consumer_seen,
    stream_seen,
    takers,
)
from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.definitions import ConsumerDefinition, StreamDefinition
from sea_mq_worker.bootstrap.operator.broker import wanted_topology
from sea_mq_worker.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Streams and consumers that exist, and how they differ from their files."""

    differences: Sequence[topology.Difference]
    defined: frozenset[str]
    defined_consumers: frozenset[tuple[str, str]]
    streams: Mapping[str, StreamSeen]
    consumers: Mapping[tuple[str, str], ConsumerSeen]
    takers: Mapping[str, Sequence[str]]
    max_payload: int


async def broker_facts(connection: NatsConnection, s: Settings, subjects: Sequence[str]) -> BrokerFacts:
    """Ask for everything once, and for who takes ``subjects``.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: a question is not permitted, or a file is no definition.
    """
    wanted = wanted_topology(s)
    names = {s.stream, s.dlq_stream, s.advisory_stream, *(consumer.stream for consumer in s.consumers)}
    streams = [await stream_seen(connection, name) for name in sorted(names)]
    consumers = [await consumer_seen(connection, c.stream, c.durable) for c in s.consumers]
    return BrokerFacts(
        differences=await topology.check(connection, wanted),
        defined=frozenset(d.name for d in wanted if isinstance(d, StreamDefinition)),
        defined_consumers=frozenset((d.stream, d.name) for d in wanted if isinstance(d, ConsumerDefinition)),
        streams={stream.name: stream for stream in streams if stream},
        consumers={(seen.stream, seen.name): seen for seen in consumers if seen},
        takers={subject: await takers(connection, subject) for subject in subjects},
        max_payload=connection.client.max_payload,
    )
