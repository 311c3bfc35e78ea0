"""A wrong relay: it marks a row as sent before it sends, so a crash in between loses the event."""

import asyncio
import os

import asyncpg
import nats

_TAKE = "UPDATE outbox SET sent = true WHERE NOT sent RETURNING place, id, subject, body"
_POLL_SECONDS = 0.05


async def main() -> None:
    database = await asyncpg.connect(os.environ["DATABASE_URL"])
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    stream = client.jetstream()
    while True:
        for row in sorted(await database.fetch(_TAKE)):
            headers = {"Nats-Msg-Id": str(row["id"])}
            await stream.publish(row["subject"], row["body"].encode(), headers=headers)
        await asyncio.sleep(_POLL_SECONDS)


asyncio.run(main())
