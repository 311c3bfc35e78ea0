"""The servers of a run, each behind a proxy, and the relay between them."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import nats
from nats.errors import Error as NatsError

from kit.audit import Stored, at, identity
from kit.description import Description, filled
from kit.ledger import SUBJECTS, Ledger
from kit.relay import Relay, run_command
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.proxy import TcpProxy, proxied

STREAM = "KIT_EVENTS"
MESSAGE_BYTES_MAX = 64 * 1024
_DATABASE = "kit"
_LOOK_SECONDS = 0.1
_WINDOW = 120 * 10**9
_POSTGRES = {"wal_level": "logical", "max_connections": "200"}


@dataclass(slots=True, kw_only=True)
class Stage:
    """What a fault has in its hands. ``ledger`` and the reading of the stream go past the proxies."""

    description: Description
    nats: EmbeddedNats
    postgres: EmbeddedPostgres
    to_nats: TcpProxy
    to_postgres: TcpProxy
    ledger: Ledger
    chance: random.Random
    relays: Sequence[Relay]
    patience_seconds: float
    dsn: str
    stored: list[Stored] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    """What was wrong when the relay was asked to stop; empty texts for what was right."""

    @property
    def relay(self) -> Relay:
        """The first instance, which always runs."""
        return self.relays[0]

    @property
    def second(self) -> Relay:
        """The other instance, started by the faults that want two."""
        return self.relays[1]

    async def read(self) -> None:
        """Take in what the stream has got since the last time."""
        client = await nats.connect(self.nats.url, allow_reconnect=False)
        try:
            stream = client.jetstream()
            last = (await stream.stream_info(STREAM)).state.last_seq
            for seq in range(len(self.stored) + 1, last + 1):
                message = await stream.get_msg(STREAM, seq)
                self.stored.append(Stored(seq=seq, headers=message.headers or {}, body=message.data or b""))
        finally:
            await client.close()

    async def grown(self, *, since: int, within: float) -> None:
        """Wait until the stream has more than so many messages, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.read()
                while len(self.stored) <= since:
                    await asyncio.sleep(_LOOK_SECONDS / 5)
                    await self.read()

    async def settled(self, fault: str) -> bool:
        """Wait until all that was committed in a fault has come to its end; False when patience is over."""
        try:
            async with asyncio.timeout(self.patience_seconds):
                while not await self._all_ended(fault):  # noqa: ASYNC110 - servers are asked, which wake nobody
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return False
        return True

    async def change_stream(self, **change: Any) -> None:
        """Change the stream's configuration; without a change it is again as the description wants it."""
        await _put_stream(self.nats.url, self.description, "UPDATE", change)

    async def unfinished(self) -> set[str] | None:
        """Ids that the table calls still to be sent; None where the description cannot tell."""
        return await self._ids(self.description.table.unfinished)

    async def refused(self) -> set[str]:
        """Ids that the table calls given up."""
        return await self._ids(self.description.table.refused) or set()

    async def _all_ended(self, fault: str) -> bool:
        await self.read()
        pointer = self.description.message.body
        sent = {identity(at(message.body, pointer), message.headers) for message in self.stored}
        open_ = await self.unfinished()
        missing = {
            event.id
            for event in self.ledger.events
            if event.fault == fault and event.committed and not event.poison and event.id not in sent
        }
        return not missing - await self.refused() if open_ is None else not missing & open_

    async def _ids(self, query: str) -> set[str] | None:
        if not query:
            return None
        connection = await asyncpg.connect(self.dsn)
        try:
            return {str(row[0]) for row in await connection.fetch(query)}
        finally:
            await connection.close()


@asynccontextmanager
async def open_stage(
    description: Description, *, folder: Path, work: Path, seed: int, patience: float
) -> AsyncIterator[Stage]:
    """Start servers and relay; stop them in the end.

    Raises:
        RelayError: a command of the description failed.
        DescriptionError: a command names an unknown placeholder.
    """
    async with AsyncExitStack() as stack:
        postgres = EmbeddedPostgres(folder / "postgres", settings=_POSTGRES)
        broker = EmbeddedNats(folder / "nats", config={"max_payload": MESSAGE_BYTES_MAX})
        await asyncio.gather(stack.enter_async_context(postgres), stack.enter_async_context(broker))
        await _put_stream(broker.url, description, "CREATE", {})
        dsn = await _create_database(postgres, description.table.create)
        to_postgres, database_url = await stack.enter_async_context(proxied(dsn))
        to_nats, nats_url = await stack.enter_async_context(proxied(broker.url))
        relays = await _relays(description, folder, work, database_url=database_url, nats_url=nats_url)
        chance = random.Random(seed)
        stage = Stage(
            description=description,
            nats=broker,
            postgres=postgres,
            to_nats=to_nats,
            to_postgres=to_postgres,
            ledger=Ledger(dsn=dsn, table=description.table, chance=chance),
            chance=chance,
            relays=relays,
            patience_seconds=patience,
            dsn=dsn,
        )
        for relay in relays:
            stack.push_async_callback(relay.kill)
        yield stage


def install(description: Description, work: Path) -> None:
    """Run the description's commands for that, again only when they or the relay's own files have changed.

    Raises:
        RelayError: one failed.
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


def _fixed(work: Path) -> dict[str, str]:
    return {"python": sys.executable, "work": str(work), "root": str(Path(__file__).parents[1])}


async def _relays(
    description: Description, folder: Path, work: Path, *, database_url: str, nats_url: str
) -> list[Relay]:
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
        log = folder / f"relay-{instance}.log"
        started = filled(relay.command, places)
        relays.append(Relay(started, environment=environment, folder=description.folder, log=log))
    return relays


async def _create_database(server: EmbeddedPostgres, create: str) -> str:
    dsn = server.dsn_for(_DATABASE)
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"CREATE DATABASE {_DATABASE}")
    await connection.close()
    if create:
        connection = await asyncpg.connect(dsn)
        await connection.execute(create)
        await connection.close()
    return dsn


async def _put_stream(url: str, description: Description, verb: str, change: Mapping[str, Any]) -> None:
    config = {"name": STREAM, "subjects": [SUBJECTS], "storage": "file", "num_replicas": 1}
    request = {**config, "duplicate_window": _WINDOW, **description.stream, **change}
    client = await nats.connect(url)
    answer = await client.request(f"$JS.API.STREAM.{verb}.{STREAM}", json.dumps(request).encode())
    await client.close()
    refused = json.loads(answer.data).get("error")
    if refused:
        raise NatsError(f"stream {STREAM}: {refused['description']}")
