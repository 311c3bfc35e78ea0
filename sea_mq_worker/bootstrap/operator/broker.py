"""Streams and dead letters, for operators' commands."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sea_mq_worker.adapters.nats import topology
from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.dead_letters import NatsDeadLetters
from sea_mq_worker.adapters.nats.definitions import Definition, definitions
from sea_mq_worker.adapters.nats.facts import stream_facts
from sea_mq_worker.bootstrap.connections.nats import open_nats
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 3.0
"""Somebody waits in front of the terminal."""


@asynccontextmanager
async def broker(settings: Settings) -> AsyncIterator[NatsConnection]:
    """Connect to NATS."""
    connection = await open_nats(
        settings, purpose="operator", on_event=_ignore, connect_timeout_seconds=_CONNECT_SECONDS
    )
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def dead_letters(settings: Settings) -> AsyncIterator[NatsDeadLetters]:
    """Connect to the dead-letter stream.

    Raises:
        ContractError: there is none; the text names the command that creates it.
    """
    async with broker(settings) as connection:
        await stream_facts(connection, settings.dlq_stream)
        yield NatsDeadLetters(connection=connection, stream=settings.dlq_stream)


async def duplicate_window_seconds(settings: Settings) -> float:
    """Ask how long the stream that is published to remembers a message id."""
    async with broker(settings) as connection:
        return (await stream_facts(connection, settings.stream)).duplicate_window_seconds


def wanted_topology(settings: Settings) -> list[Definition]:
    """Read the definitions that the settings choose."""
    return definitions(
        settings.streams_folder or resource_folder("streams"),
        context=settings.context,
        replicas=settings.stream_replicas,
        max_bytes=settings.stream_max_bytes,
    )


async def check_topology(settings: Settings) -> list[topology.Difference]:
    """Compare streams and consumers with their definitions."""
    async with broker(settings) as connection:
        return await topology.check(connection, wanted_topology(settings))


async def apply_topology(settings: Settings) -> list[topology.Change]:
    """Create and update streams and consumers."""
    async with broker(settings) as connection:
        return await topology.apply(connection, wanted_topology(settings))


def _ignore(_event: str, _text: str) -> None:
    """A command tells what it does, not how its connection fares."""
