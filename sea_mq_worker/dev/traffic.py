"""The sample traffic: outbox events of this service, messages of another context, and what becomes of both.

As a program it sends 1000 of each to the servers that the settings name.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg
import httpx2
import nats
import typer

from sea_mq_worker.producer import Event, enqueue, uuid7
from sea_mq_worker.settings import load_settings

_PER_TRANSACTION = 50
_KEYS = 25
_POISON_EVERY = 50
_FLAKY_EVERY = 40
_COUNT = 1000
_POLL_SECONDS = 0.25


async def write_orders(dsn: str, count: int) -> None:
    """Insert events as a service does: in the transactions of the changes that the events describe."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, total NUMERIC)")
        first = 1 + await connection.fetchval("SELECT coalesce(max(id), 0) FROM orders")
        for start in range(first, first + count, _PER_TRANSACTION):
            numbers = range(start, min(start + _PER_TRANSACTION, first + count))
            async with connection.transaction():
                rows = [(number, number) for number in numbers]
                await connection.executemany("INSERT INTO orders VALUES ($1, $2)", rows)
                events = [
                    Event(
                        aggregate_type="order",
                        aggregate_id=str(number),
                        event_type="order.created",
                        payload={"order": number, "total": number},
                        ordering_key=f"customer-{number % _KEYS}",
                    )
                    for number in numbers
                ]
                await enqueue(connection, *events)
    finally:
        await connection.close()


async def publish_vibes(url: str, count: int, *, inbox_prefix: str = "_INBOX") -> None:
    """Publish as the context ``vibespro``; the handler rejects a few messages and fails a few temporarily."""
    connection = await nats.connect(url, inbox_prefix=inbox_prefix)
    try:
        stream = connection.jetstream()
        for number in range(count):
            payload: dict[str, object] = {"vibe": number}
            if number % _POISON_EVERY == _POISON_EVERY - 1:
                payload["poison"] = True
            elif number % _FLAKY_EVERY == 0:
                payload["flaky"] = True
            body, headers = json.dumps(payload).encode(), {"Nats-Msg-Id": str(uuid7())}
            await stream.publish("vibespro.event.vibe_created.v1", body, headers=headers)
    finally:
        await connection.close()


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

    def __str__(self) -> str:
        return f"""
outbox -> stream      {self.written} events written, {self.published} PUBLISHED, \
{self.in_stream} messages in SEA_EVENTS
stream -> handler     {self.received} messages in VIBESPRO_EVENTS, {self.processed} processed, \
{self.effects} effects in {self.calls} calls
dead letters          {self.dead_letters} in SEA_DLQ, rejected by the handler with status 422"""


async def follow(*, dsn: str, nats_url: str, handler_url: str, ended: Callable[[], bool]) -> Figures:
    """Ask the servers, not the worker, until the figures are complete or ``ended``; return the last ones."""
    database, broker = await asyncpg.connect(dsn), await nats.connect(nats_url)
    stream = broker.jetstream()

    async def messages(name: str) -> int:
        return (await stream.stream_info(name)).state.messages

    try:
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            while True:
                outbox = await database.fetchrow(
                    "SELECT count(*) AS written, count(published_at) AS published FROM outbox_events"
                )
                handler = (await http.get(f"{handler_url}/effects")).json()
                figures = Figures(
                    written=outbox["written"],
                    published=outbox["published"],
                    in_stream=await messages("SEA_EVENTS"),
                    received=await messages("VIBESPRO_EVENTS"),
                    processed=await database.fetchval("SELECT count(processed_at) FROM inbox_messages"),
                    effects=handler["effects"],
                    calls=handler["calls"],
                    dead_letters=await messages("SEA_DLQ"),
                )
                is_last = figures.complete or ended()
                if sys.stdout.isatty():
                    done = f"{figures.published} of {figures.written} published"
                    handled = f"{figures.processed + figures.dead_letters} of {figures.received} handled"
                    typer.echo(f"\r{done}, {handled}   ", nl=is_last)
                if is_last:
                    return figures
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        await broker.close()
        await database.close()


async def _main() -> None:
    settings = load_settings(needs=("database_url", "nats_url"))
    await asyncio.gather(
        write_orders(settings.database_url.get_secret_value(), _COUNT),
        publish_vibes(settings.nats_url.get_secret_value(), _COUNT, inbox_prefix=settings.nats_inbox_prefix),
    )


if __name__ == "__main__":
    asyncio.run(_main())
