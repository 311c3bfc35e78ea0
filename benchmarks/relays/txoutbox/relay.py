"""txoutbox's relay with a publisher for JetStream."""

import os
import sys

import nats
import uvloop
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage


async def main() -> None:
    storage = await PostgresStorage.connect(os.environ["DATABASE_URL"])
    if sys.argv[1:] == ["create-table"]:
        await storage.create_schema()
        return
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    stream = client.jetstream()

    async def publish(message: OutboxMessage) -> None:
        await stream.publish(message.topic, message.payload, headers=dict(message.headers))

    config = RelayConfig(batch_size=1_000, concurrency=200)
    await Relay(storage, publish, config=config).run(handle_signals=True)
    await client.close()
    await storage.close()


uvloop.run(main())
