"""Connects operators' commands to NATS: streams, consumers and dead letters."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import assert_never

from sea_mq_worker.connections import open_nats
from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import consumer_info, find_consumer, stream_info, subjects_in
from sea_mq_worker.operators import definitions as sync_definitions
from sea_mq_worker.operators.definitions import (
    AWAITED,
    EXISTENCE,
    Change,
    ConsumerDefinition,
    Definition,
    Difference,
    StreamDefinition,
    definitions,
    derived_definitions,
    write_definitions,
)
from sea_mq_worker.operators.inspection import NatsDeadLetters, NatsStreamInspection
from sea_mq_worker.operators.ports import DeadLetterStore, StreamInspection
from sea_mq_worker.operators.records import ConsumerState
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 3.0
"""Cap on the time to connect: somebody waits at the terminal."""


@asynccontextmanager
async def broker(settings: Settings) -> AsyncIterator[NatsConnection]:
    connection = await open_nats(
        settings, purpose="operator", on_event=_ignore, connect_timeout_seconds=_CONNECT_SECONDS
    )
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def stream_inspection(settings: Settings) -> AsyncIterator[NatsStreamInspection]:
    """Connect to NATS to read streams and consumers."""
    async with broker(settings) as connection:
        yield NatsStreamInspection(connection=connection)


async def duplicate_window_seconds(settings: Settings) -> float | None:
    """Return the own stream's deduplication window; None: NATS does not answer."""
    if not settings.nats_url.get_secret_value():
        return None
    try:
        async with broker(settings) as connection:
            return (await stream_info(connection, settings.stream)).duplicate_window_seconds
    except WorkerError:
        return None


@asynccontextmanager
async def dead_letters(settings: Settings) -> AsyncIterator[NatsDeadLetters]:
    """Connect to the dead-letter stream.

    Raises:
        ContractError: the stream does not exist; the text names the command that creates it.
    """
    async with broker(settings) as connection:
        await stream_info(connection, settings.dlq_stream)
        yield NatsDeadLetters(connection=connection, stream=settings.dlq_stream)


@asynccontextmanager
async def lookup_broker(settings: Settings) -> AsyncIterator[tuple[StreamInspection, DeadLetterStore]]:
    """Connect to NATS to look for a message, also without a dead-letter stream."""
    async with broker(settings) as connection:
        yield (
            NatsStreamInspection(connection=connection),
            NatsDeadLetters(connection=connection, stream=settings.dlq_stream),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Changes that ``streams apply`` made or would make, and the differences that are left."""

    changes: list[Change] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


async def stored_subjects(settings: Settings) -> tuple[Collection[str], Collection[str]]:
    """Return the subjects in this context's stream, and those in other streams that its consumers want.

    Raises:
        ContractError: a stream or a consumer does not exist.
    """
    async with broker(settings) as connection:
        sent = await subjects_in(connection, settings.stream)
        received: set[str] = set()
        for wanted in settings.consumers:
            consumer = await consumer_info(connection, wanted.stream, wanted.durable)
            received |= {s for s in await subjects_in(connection, wanted.stream) if consumer.wants(s)}
    return sent, received


def wanted_topology(settings: Settings, *, streams: Collection[str] = ()) -> list[Definition]:
    """Return the definitions of this context, or those of ``streams``, which may be another context's.

    A context owns its streams with their consumers, and the durables that its settings name on other streams.

    Raises:
        ContractError: a file is missing or no definition, or there is no definition of one of ``streams``.
    """
    found = _definitions(settings)
    if unknown := set(streams) - _streams_of(found):
        defined = ", ".join(sorted(_streams_of(found)))
        raise ContractError(f"{', '.join(sorted(unknown))}: not defined; defined are {defined}")
    own = {settings.stream, settings.dlq_stream, settings.advisory_stream}
    durables = {(consumer.stream, consumer.durable) for consumer in settings.consumers}

    def is_wanted(definition: Definition) -> bool:
        match definition:
            case StreamDefinition(name=name):
                return name in (streams or own)
            case ConsumerDefinition(stream=stream, name=name):
                return (not streams or stream in streams) and (stream in own or (stream, name) in durables)
            case _:
                assert_never(definition)

    return [definition for definition in found if is_wanted(definition)]


def defined_streams(settings: Settings) -> frozenset[str]:
    """Return every stream that has a definition, for a server that no other context uses."""
    return _streams_of(_definitions(settings))


async def check_topology(settings: Settings, *, streams: Collection[str] = ()) -> list[Difference]:
    wanted = wanted_topology(settings, streams=streams)
    async with broker(settings) as connection:
        return await _compare(connection, wanted, settings)


async def apply_topology(
    settings: Settings,
    *,
    streams: Collection[str] = (),
    dry_run: bool = False,
    on_change: Callable[[Change], None] = lambda _change: None,
) -> Applied:
    """Create and update streams and consumers, then compare them; change nothing in a dry run.

    A consumer that only another context's deployment can make possible stays an AWAITED difference.
    """
    wanted = wanted_topology(settings, streams=streams)
    async with broker(settings) as connection:
        changes = await sync_definitions.apply(connection, wanted, dry_run=dry_run, on_change=on_change)
        differences = await _compare(connection, wanted, settings)
    if dry_run:
        return Applied(changes=changes, differences=[one for one in differences if one.field == AWAITED])
    denied = {
        one.label: sync_definitions.elsewhere(one.stream)
        for one in wanted
        if sync_definitions.is_foreign(one, wanted)
    }
    return Applied(
        changes=changes,
        differences=[
            replace(one, field=AWAITED, wanted=f"another user: it {denied[one.name]}")
            if one.field == EXISTENCE and one.name in denied
            else one
            for one in differences
        ],
    )


async def _compare(
    connection: NatsConnection, wanted: Sequence[Definition], settings: Settings
) -> list[Difference]:
    """Compare with the definitions; check advisories only if their stream is among the definitions."""
    is_own = settings.advisory_stream in _streams_of(wanted)
    found = await sync_definitions.check(connection, wanted, advisories=is_own)
    return [*found, *await _without_file(connection, settings)] if is_own else found


async def _without_file(connection: NatsConnection, settings: Settings) -> list[Difference]:
    """Find durables of the settings that do not exist and that no file defines."""
    defined = {
        (one.stream, one.name) for one in _definitions(settings) if isinstance(one, ConsumerDefinition)
    }
    return [
        Difference(
            name=f"consumer {c.durable} of stream {c.stream}",
            field="its file",
            wanted=f"consumers/{c.stream}.{c.durable}.json in SEA_MQ_STREAMS_FOLDER",
            found="missing",
        )
        for c in settings.consumers
        if (c.stream, c.durable) not in defined and not await find_consumer(connection, c.stream, c.durable)
    ]


def export_topology(settings: Settings, folder: Path) -> list[Path]:
    """Write all definitions into a folder, for the nats CLI or to change them, and return the files.

    Raises:
        ContractError: a definition or the folder cannot be used, or the folder has definitions already.
    """
    return write_definitions(_definitions(settings), folder)


def _definitions(settings: Settings) -> list[Definition]:
    s = settings
    if s.streams_folder:
        return definitions(
            s.streams_folder, context=s.context, replicas=s.stream_replicas, max_bytes=s.stream_max_bytes
        )
    return derived_definitions(
        [(consumer.stream, consumer.durable) for consumer in s.consumers],
        context=s.context,
        replicas=s.stream_replicas,
        max_bytes=s.stream_max_bytes,
    )


def _streams_of(found: Collection[Definition]) -> frozenset[str]:
    return frozenset(one.name for one in found if isinstance(one, StreamDefinition))


def _ignore(_event: str, _text: str) -> None:
    """Ignore events of the connection: a command prints its own result."""


# --- The oldest message of the consumed streams, and the backlogs of their consumers.

_CLOCKS = timedelta(hours=1)
"""Tolerance, since the broker's clock may be ahead of the database's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverable:
    """A stream that may redeliver messages received ``since`` this time."""

    stream: str
    since: datetime


async def oldest_deliverable(settings: Settings) -> Deliverable | None:
    """Return the consumed stream with the oldest message: younger inbox rows must stay.

    None: no stream holds a message.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: the request is not permitted.
    """
    async with stream_inspection(settings) as streams:
        return await oldest_of(streams, {consumer.stream for consumer in settings.consumers})


async def oldest_of(streams: StreamInspection, names: Collection[str]) -> Deliverable | None:
    """Return the stream with the oldest message; None: none of them holds a message."""
    found = [(await streams.first_stored_at(name), name) for name in sorted(names)]
    first, name = min(((at, name) for at, name in found if at), default=(None, ""))
    return Deliverable(stream=name, since=first - _CLOCKS) if first else None


async def consumer_states(settings: Settings) -> tuple[Sequence[ConsumerState], Sequence[str]]:
    """Return the states of the configured consumers, and those that could not be queried with the reason."""
    found: list[ConsumerState] = []
    not_checked: list[str] = []
    try:
        async with stream_inspection(settings) as streams:
            for wanted in settings.consumers:
                try:
                    found.append(await streams.consumer_state(wanted.stream, wanted.durable))
                except WorkerError as error:
                    not_checked.append(f"consumer {wanted.durable} of {wanted.stream}: {error}")
    except WorkerError as error:
        not_checked.append(f"streams: {error}")
    return found, not_checked
