"""Follow the progress of the sample traffic by querying the servers, independently of the worker."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx2
import nats
from nats.js import JetStreamContext

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    written: int
    published: int
    in_stream: int
    received: int
    processed: int
    effects: int
    calls: int
    dead_letters: int

    @property
    def complete(self) -> bool:
        """Whether every written event is published and every message is processed or dead-lettered."""
        return self.published == self.written and self.processed + self.dead_letters == self.received


async def follow(
    *, dsn: str, nats_url: str, handler_url: str, show: Callable[[Figures], None], ended: Callable[[], bool]
) -> Figures:
    """Show figures until they are complete or ``ended`` returns true; return the last figures."""
    database = await asyncpg.connect(dsn)
    broker = await nats.connect(nats_url)
    try:
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            while True:
                figures = await _read_figures(database, broker.jetstream(), http, handler_url)
                show(figures)
                if figures.complete or ended():
                    return figures
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        await broker.close()
        await database.close()


async def _read_figures(
    database: asyncpg.Connection, stream: JetStreamContext, http: httpx2.AsyncClient, handler_url: str
) -> Figures:
    outbox = await database.fetchrow(
        "SELECT count(*) AS written, count(published_at) AS published FROM outbox_events"
    )
    processed = await database.fetchval("SELECT count(processed_at) FROM inbox_messages")
    handler: dict[str, Any] = (await http.get(f"{handler_url}/effects")).json()
    return Figures(
        written=outbox["written"],
        published=outbox["published"],
        in_stream=await _messages(stream, "SEA_EVENTS"),
        received=await _messages(stream, "VIBESPRO_EVENTS"),
        processed=processed,
        effects=handler["effects"],
        calls=handler["calls"],
        dead_letters=await _messages(stream, "SEA_DLQ"),
    )


async def _messages(stream: JetStreamContext, name: str) -> int:
    return (await stream.stream_info(name)).state.messages
