"""FastStream's consumer with a table as inbox: ID and effect in one transaction, then the acknowledgement."""

import os
from typing import Any

import asyncpg
import uvloop
from faststream import FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub

_CONNECTIONS = 16
_BATCH = 50
"""As many as the durable's max_ack_pending: a request for more waits for its time limit of 5 s."""
_RECORD = "INSERT INTO peer_inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING true"


async def main() -> None:
    broker = NatsBroker(os.environ["NATS_URL"])
    async with asyncpg.create_pool(
        os.environ["DATABASE_URL"], min_size=_CONNECTIONS, max_size=_CONNECTIONS
    ) as pool:

        @broker.subscriber(
            os.environ["SUBJECT"],
            stream=JStream(os.environ["STREAM"], declare=False),
            durable=os.environ["DURABLE"],
            pull_sub=PullSub(batch_size=_BATCH),
        )
        async def receive(body: dict[str, Any], message: NatsMessage) -> None:
            async with pool.acquire() as connection, connection.transaction():
                if await connection.fetchval(_RECORD, message.headers["Nats-Msg-Id"]):
                    body["handled"] = True

        await FastStream(broker).run(log_level=30)


uvloop.run(main())
