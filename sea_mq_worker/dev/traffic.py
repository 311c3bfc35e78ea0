"""Send sample traffic: outbox events of this service, and messages of another context.

As a program it sends 1000 of each to the servers that the settings name.
"""

import asyncio
import json

import asyncpg
import nats
from nats.js import JetStreamContext

from sea_mq_worker.producer import Event, enqueue, uuid7
from sea_mq_worker.settings import load_settings

_PER_TRANSACTION = 50
_KEYS = 25
_POISON_EVERY = 50
_FLAKY_EVERY = 40
_COUNT = 1000


async def write_orders(dsn: str, count: int) -> None:
    """Insert events as a service does: in the transactions of the changes that the events describe."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, total NUMERIC)")
        first = 1 + await connection.fetchval("SELECT coalesce(max(id), 0) FROM orders")
        for start in range(first, first + count, _PER_TRANSACTION):
            numbers = range(start, min(start + _PER_TRANSACTION, first + count))
            async with connection.transaction():
                await connection.executemany(
                    "INSERT INTO orders VALUES ($1, $2)", [(number, number) for number in numbers]
                )
                await enqueue(connection, *(_order_created(number) for number in numbers))
    finally:
        await connection.close()


def _order_created(number: int) -> Event:
    return Event(
        aggregate_type="order",
        aggregate_id=str(number),
        event_type="order.created",
        payload={"order": number, "total": number},
        ordering_key=f"customer-{number % _KEYS}",
    )


async def publish_vibes(url: str, count: int, *, inbox_prefix: str = "_INBOX") -> None:
    """Publish as the context ``vibespro``; the handler rejects a few messages and fails a few temporarily."""
    connection = await nats.connect(url, inbox_prefix=inbox_prefix)
    try:
        stream = connection.jetstream()
        for number in range(count):
            await _publish_vibe(stream, number)
    finally:
        await connection.close()


async def _publish_vibe(stream: JetStreamContext, number: int) -> None:
    payload: dict[str, object] = {"vibe": number}
    if number % _POISON_EVERY == _POISON_EVERY - 1:
        payload["poison"] = True
    elif number % _FLAKY_EVERY == 0:
        payload["flaky"] = True
    body = json.dumps(payload).encode()
    headers = {"Nats-Msg-Id": str(uuid7())}
    await stream.publish("vibespro.event.vibe_created.v1", body, headers=headers)


async def _main() -> None:
    settings = load_settings(needs=("database_url", "nats_url"))
    await asyncio.gather(
        write_orders(settings.database_url.get_secret_value(), _COUNT),
        publish_vibes(settings.nats_url.get_secret_value(), _COUNT, inbox_prefix=settings.nats_inbox_prefix),
    )


if __name__ == "__main__":
    asyncio.run(_main())
