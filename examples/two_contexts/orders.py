"""Orders: one of two services that talk both ways. It publishes orders, and handles the answers of ``stock``.

Run it with ``uvicorn orders:app --port 8000``; its worker has the settings

    SEA_MQ_CONTEXT=orders SEA_MQ_CONSUMERS=STOCK_EVENTS/orders__from_stock
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
from fastapi import Body, FastAPI, HTTPException

from sea_mq_worker.producer import Event, enqueue
from sea_mq_worker.producer.once import once


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["SEA_MQ_DATABASE_URL"]) as app.state.pool:
        await app.state.pool.execute(
            "CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, item TEXT, state TEXT)"
        )
        yield


app = FastAPI(title="Orders", lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(item: Annotated[str, Body(embed=True)]) -> dict[str, int]:
    async with app.state.pool.acquire() as connection, connection.transaction():
        order = await connection.fetchval(
            "INSERT INTO orders (item, state) VALUES ($1, 'placed') RETURNING id", item
        )
        event = Event(
            aggregate_type="order",
            aggregate_id=str(order),
            event_type="order.placed",
            payload={"order": order, "item": item},
            ordering_key=f"order-{order}",
        )
        await enqueue(connection, event)
    return {"order": order}


@app.get("/orders/{order}")
async def show(order: int) -> dict[str, str | None]:
    return {"state": await app.state.pool.fetchval("SELECT state FROM orders WHERE id = $1", order)}


@app.post("/handle")
async def handle(message: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
    async with (
        app.state.pool.acquire() as connection,
        connection.transaction(),
        once(connection, message["message_id"]) as first,
    ):
        if not first:
            raise HTTPException(409, "handled before")
        if message["event_type"] in {"stock.reserved", "stock.refused"}:
            state = message["event_type"].removeprefix("stock.")
            order = message["payload"]["order"]
            await connection.execute("UPDATE orders SET state = $2 WHERE id = $1", order, state)
    return {"result": "handled"}
