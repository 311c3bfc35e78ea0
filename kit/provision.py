"""Install a relay, create its database and stream, and build its processes."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kit.description import Description, filled
from kit.ledger import SUBJECTS
from kit.process import KeptProcess, run_command
from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.nats.connection import api
from tests.support.jetstream import connected
from tests.support.servers import database_connection

STREAM = "KIT_EVENTS"
_DATABASE = "kit"
_WINDOW = 120 * 10**9


def install(description: Description, work: Path) -> None:
    """Run the description's install commands, unless neither they nor the relay's files have changed.

    Raises:
        CommandError: a command failed.
    """
    mark = work / "installed"
    commands = [filled(command, _fixed(work)) for command in description.relay.install]
    files = sorted(path for path in (description.folder / description.name).rglob("*") if path.is_file())
    state = hashlib.sha256(json.dumps(commands).encode())
    for file in files:
        state.update(file.read_bytes())
    if mark.exists() and mark.read_text() == state.hexdigest():
        return
    work.mkdir(parents=True, exist_ok=True)
    for command in commands:
        asyncio.run(run_command(command, environment=os.environ, folder=description.folder))
    mark.write_text(state.hexdigest())


async def create_database(server: EmbeddedPostgres, create: str) -> str:
    """Create the relay's database, run the description's SQL in it, and return its URL."""
    dsn = server.dsn_for(_DATABASE)
    async with database_connection(server.dsn) as connection:
        await connection.execute(f"CREATE DATABASE {_DATABASE}")
    if create:
        async with database_connection(dsn) as connection:
            await connection.execute(create)
    return dsn


async def put_stream(url: str, description: Description, verb: str, change: Mapping[str, Any]) -> None:
    """CREATE or UPDATE the stream with the description's settings and the change.

    Raises:
        WorkerError: the server refuses, or does not respond.
    """
    config = {"name": STREAM, "subjects": [SUBJECTS], "storage": "file", "num_replicas": 1}
    request = {**config, "duplicate_window": _WINDOW, **description.stream, **change}
    async with connected(url) as broker:
        await api(broker, f"STREAM.{verb}.{STREAM}", request)


async def prepared_relays(
    description: Description, folder: Path, work: Path, *, database_url: str, nats_url: str
) -> list[KeptProcess]:
    """Run the description's ``prepare``, and return two instances, not yet started.

    Raises:
        CommandError: a command of the description failed.
        DescriptionError: a command names an unknown placeholder.
    """
    database = urlsplit(database_url)
    relays = []
    for instance in ("1", "2"):
        own = folder / f"relay-{instance}"
        own.mkdir()
        places = {
            **_fixed(work),
            "own": str(own),
            "instance": instance,
            "database_url": database_url,
            "database_address": database_url.partition("://")[2],
            "database_host": str(database.hostname),
            "database_port": str(database.port),
            "database_user": str(database.username),
            "database_password": str(database.password),
            "database_name": _DATABASE,
            "nats_url": nats_url,
            "stream": STREAM,
        }
        relay = description.relay
        values = filled(tuple(relay.environment.values()), places)
        environment = {**os.environ, **dict(zip(relay.environment, values, strict=True))}
        if instance == "1":
            for command in relay.prepare:
                await run_command(filled(command, places), environment=environment, folder=description.folder)
        relays.append(
            KeptProcess(
                name=f"relay-{instance}",
                command=filled(relay.command, places),
                environment=environment,
                folder=description.folder,
                logs=folder,
            )
        )
    return relays


def _fixed(work: Path) -> dict[str, str]:
    return {"python": sys.executable, "work": str(work), "root": str(Path(__file__).parents[1])}
