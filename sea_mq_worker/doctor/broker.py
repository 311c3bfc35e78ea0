"""Facts about NATS, read by one connection; a part that does not answer hides no other part."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, assert_never

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.manage import sync_definitions
from sea_mq_worker.adapters.nats.manage.definitions import ConsumerDefinition, Definition, StreamDefinition
from sea_mq_worker.adapters.nats.manage.stream_inspection import consumer_state
from sea_mq_worker.adapters.nats.server_info import (
    ConsumerInfo,
    StreamInfo,
    find_consumer,
    find_stream,
    streams_taking,
)
from sea_mq_worker.doctor.broker_catalog import BrokerKind
from sea_mq_worker.doctor.finding import Finding
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.domain.topology import Difference
from sea_mq_worker.operations.broker import wanted_topology
from sea_mq_worker.settings import Settings

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Streams and consumers that exist, and how they differ from their files.

    ``oldest_seconds``: age of a consumer's oldest undelivered message, where it has one that can be read.
    ``silent``: streams and consumers that did not answer or refused; their existence is unknown.
    """

    differences: Sequence[Difference]
    defined: frozenset[str]
    streams: Mapping[str, StreamInfo]
    consumers: Mapping[tuple[str, str], ConsumerInfo]
    oldest_seconds: Mapping[tuple[str, str], float]
    takers: Mapping[str, Sequence[str]]
    max_payload: int
    version: str
    silent: frozenset[str]


async def broker_facts(connection: NatsConnection, s: Settings, found: list[Finding]) -> BrokerFacts:
    """Read everything once; append findings about refused or missing answers to ``found``.

    Raises:
        BrokerUnavailableError: JetStream itself does not answer, or the connection is lost.
    """
    wanted = _definitions(s, found)
    ask = _Requests(connection, found)
    taken = {subject: await ask.takers(subject) for subject in own_subjects(s).values()}
    names = {s.stream, s.dlq_stream, s.advisory_stream, *(consumer.stream for consumer in s.consumers)}
    streams = [await ask(stream_label(name), find_stream(connection, name)) for name in sorted(names)]
    durables = [(c.stream, c.durable) for c in s.consumers if stream_label(c.stream) not in ask.silent]
    consumers = [await ask(consumer_label(*d), find_consumer(connection, *d)) for d in durables]
    states = [await consumer_state(connection, seen) for seen in consumers if seen]
    differences = [await ask.differences(definition, wanted) for definition in wanted]
    return BrokerFacts(
        differences=[difference for several in differences for difference in several],
        defined=frozenset(_label(definition) for definition in wanted),
        streams={stream.name: stream for stream in streams if stream},
        consumers={(seen.stream, seen.name): seen for seen in consumers if seen},
        oldest_seconds={
            (one.stream, one.durable): one.oldest_seconds for one in states if one.oldest_seconds
        },
        takers=taken,
        max_payload=connection.client.max_payload,
        version=".".join(map(str, connection.server_version)),
        silent=frozenset(ask.silent),
    )


def own_subjects(s: Settings) -> Mapping[str, str]:
    """Return the subjects that the worker publishes, by the stream that must take them."""
    return {s.stream: f"{s.context}.event.>", s.dlq_stream: f"{s.context}.dlq.>"}


def stream_label(name: str) -> str:
    return f"stream {name}"


def consumer_label(stream: str, durable: str) -> str:
    return f"consumer {durable} of stream {stream}"


class _Requests:
    """Requests that survive a missing answer: ``silent`` gets its name, ``found`` the reason."""

    def __init__(self, connection: NatsConnection, found: list[Finding]) -> None:
        self.silent: set[str] = set()
        self._connection = connection
        self._found = found

    async def __call__(self, where: str, question: Awaitable[_T]) -> _T | None:
        try:
            return await question
        except BrokerUnavailableError as error:
            if not self._connection.is_connected:
                raise
            self._found.append(BrokerKind.STREAM_UNAVAILABLE.finding(where, str(error)))
        except ContractError as error:
            self._found.append(BrokerKind.BROKER_REFUSES.finding(where, str(error)))
        self.silent.add(where)
        return None

    async def takers(self, subject: str) -> Sequence[str]:
        """Name the streams that take ``subject``; JetStream's leader answers, no answer means an outage."""
        try:
            return await streams_taking(self._connection, subject)
        except ContractError as error:
            self._found.append(BrokerKind.BROKER_REFUSES.finding("NATS", str(error)))
            return ()

    async def differences(self, definition: Definition, wanted: Sequence[Definition]) -> Sequence[Difference]:
        """Compare with a file, unless it did not answer before."""
        where = _label(definition)
        if {where, stream_label(_stream(definition))} & self.silent:
            return ()
        return await self(where, sync_definitions.check(self._connection, [definition], among=wanted)) or ()


def _definitions(s: Settings, found: list[Finding]) -> Sequence[Definition]:
    try:
        return wanted_topology(s)
    except ContractError as error:
        found.append(BrokerKind.DEFINITIONS_INVALID.finding("SEA_MQ_STREAMS_FOLDER", str(error)))
        return ()


def _label(definition: Definition) -> str:
    match definition:
        case StreamDefinition():
            return stream_label(definition.name)
        case ConsumerDefinition():
            return consumer_label(definition.stream, definition.name)
        case _:
            assert_never(definition)


def _stream(definition: Definition) -> str:
    return definition.name if isinstance(definition, StreamDefinition) else definition.stream
