"""faststream-outbox stacked on FastStream's publisher for JetStream, as its documentation has it."""

import os
import sys
from typing import Any

import uvloop
from faststream import FastStream
from faststream.nats import NatsBroker
from faststream_outbox import OutboxBroker, make_outbox_table, outbox_autovacuum_ddl
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

_WORKERS = 16

metadata = MetaData()
table = make_outbox_table(metadata, table_name="outbox")
# A connection for each worker, and one to fetch.
engine = create_async_engine(os.environ["DATABASE_URL"], pool_size=_WORKERS + 1)
outbox = OutboxBroker(engine, outbox_table=table)
broker = NatsBroker(os.environ["NATS_URL"])


@broker.publisher(os.environ["SUBJECT"], stream=os.environ["STREAM"])
@outbox.subscriber(
    "events",
    max_workers=_WORKERS,
    fetch_batch_size=200,
    min_fetch_interval=0.1,
    terminal_flush_batch_size=100,
    propagate_inbound_headers=True,
)
async def relay(body: dict[str, Any]) -> dict[str, Any]:
    return body


async def create_table() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(text(outbox_autovacuum_ddl("outbox", vacuum_cost_delay=0)))
    await engine.dispose()


async def main() -> None:
    if sys.argv[1:] == ["create-table"]:
        await create_table()
    else:
        await FastStream(outbox, on_startup=[broker.connect]).run(log_level=30)


uvloop.run(main())
