"""FastStream's consumer with a table as inbox: ID and effect in one transaction, then the acknowledgement."""

import os
from typing import Any

import asyncpg
import uvloop
from faststream import FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub

_WORKERS = 16
_BATCH = 100
_RECORD = "INSERT INTO peer_inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING true"


async def main() -> None:
    broker = NatsBroker(os.environ["NATS_URL"])
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=_WORKERS, max_size=_WORKERS) as pool:

        @broker.subscriber(
            os.environ["SUBJECT"],
            stream=JStream(os.environ["STREAM"], declare=False),
            durable=os.environ["DURABLE"],
            pull_sub=PullSub(batch_size=_BATCH),
            max_workers=_WORKERS,
        )
        async def receive(body: dict[str, Any], message: NatsMessage) -> None:
            async with pool.acquire() as connection, connection.transaction():
                if await connection.fetchval(_RECORD, message.headers["Nats-Msg-Id"]):
                    body["handled"] = True

        await FastStream(broker).run(log_level=30)


uvloop.run(main())
