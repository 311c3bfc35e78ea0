"""walbox with a handler that publishes a transaction's events to JetStream, keys side by side."""

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from signal import SIGTERM
from typing import Any

import nats
import psycopg
import uvloop
from psycopg_pool import AsyncConnectionPool
from walbox import ChangeKind, CheckpointHandle, Transaction, Walbox, WalboxOptions

_DSN = os.environ["DATABASE_URL"]
_SLOT = "relay"
_PUBLICATION = "outbox"


async def prepare() -> None:
    async with await psycopg.AsyncConnection.connect(_DSN, autocommit=True) as connection:
        await connection.execute(f"CREATE PUBLICATION {_PUBLICATION} FOR TABLE outbox")
        await connection.execute(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'pgoutput')")


async def run() -> None:
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    stream = client.jetstream()

    async def publish(rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            headers = {"Nats-Msg-Id": str(row["id"])}
            await stream.publish(row["subject"], row["body"].encode(), headers=headers)

    async def handle(transaction: Transaction, checkpoint: CheckpointHandle) -> None:
        lanes: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for change in transaction.changes:
            if change.kind == ChangeKind.INSERT and change.new is not None:
                lanes[change.new["key"] or str(change.new["id"])].append(change.new)
        await asyncio.gather(*map(publish, lanes.values()))
        await checkpoint.save(transaction.commit_lsn)

    options = WalboxOptions(consumer_name="relay", dsn=_DSN, slot_name=_SLOT, publication_name=_PUBLICATION)
    async with AsyncConnectionPool(_DSN, min_size=1) as pool:
        walbox = Walbox.build_with_pool(options, pool)
        asyncio.get_running_loop().add_signal_handler(SIGTERM, walbox.close)
        await walbox.run(handle)
    await client.close()


uvloop.run(prepare() if sys.argv[1:] == ["prepare"] else run())
