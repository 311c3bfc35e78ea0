"""Stock: the other of two services that talk both ways. It reserves the item of an order, and answers.

Run it with ``uvicorn stock:app --port 8001``; its worker has the settings

    SEA_MQ_CONTEXT=stock SEA_MQ_CONSUMERS=ORDERS_EVENTS/stock__from_orders
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

import asyncpg
from fastapi import Body, FastAPI, HTTPException

from sea_mq_worker.producer import Event, enqueue
from sea_mq_worker.producer.once import once


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["SEA_MQ_DATABASE_URL"]) as app.state.pool:
        await app.state.pool.execute("CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, pieces INT)")
        await app.state.pool.execute("INSERT INTO stock VALUES ('book', 1) ON CONFLICT DO NOTHING")
        yield


app = FastAPI(title="Stock", lifespan=lifespan)


@app.post("/handle")
async def handle(message: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
    async with (
        app.state.pool.acquire() as connection,
        connection.transaction(),
        once(connection, message["message_id"]) as first,
    ):
        if not first:
            raise HTTPException(409, "handled before")
        if message["event_type"] == "order.placed":
            await reserve(connection, message)
    return {"result": "handled"}


async def reserve(connection: asyncpg.Connection, message: dict[str, Any]) -> None:
    """Take a piece if there is one, and publish the answer in the same transaction."""
    order, item = message["payload"]["order"], message["payload"]["item"]
    take = "UPDATE stock SET pieces = pieces - 1 WHERE item = $1 AND pieces > 0 RETURNING item"
    answer = "stock.reserved" if await connection.fetchval(take, item) else "stock.refused"
    event = Event(
        aggregate_type="order",
        aggregate_id=str(order),
        event_type=answer,
        payload={"order": order},
        causation_id=UUID(message["message_id"]),
        ordering_key=f"order-{order}",
    )
    await enqueue(connection, event)
