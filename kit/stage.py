"""The servers of a run, each behind a proxy, and the relay between them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.audit import at, identity
from kit.description import Description
from kit.ledger import Ledger
from kit.process import KeptProcess
from kit.provision import STREAM, create_database, prepared_relays, put_stream
from kit.streams import Message, stored
from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from tests.support.jetstream import connected
from tests.support.proxy import TcpProxy, proxied
from tests.support.servers import database_connection

MESSAGE_BYTES_MAX = 64 * 1024
_POLL_SECONDS = 0.1
_POSTGRES = {"wal_level": "logical", "max_connections": "200"}


@dataclass(slots=True, kw_only=True)
class Stage:
    """The objects that a fault works on. ``ledger`` and reads of the stream bypass the proxies."""

    description: Description
    nats: EmbeddedNats
    postgres: EmbeddedPostgres
    to_nats: TcpProxy
    to_postgres: TcpProxy
    ledger: Ledger
    chance: random.Random
    relays: Sequence[KeptProcess]
    stuck_seconds: float
    dsn: str
    stored: list[Message] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    """The problem at each stop of the relay; an empty text for a correct stop."""

    @property
    def relay(self) -> KeptProcess:
        """The first instance, which always runs."""
        return self.relays[0]

    @property
    def second(self) -> KeptProcess:
        """The second instance, started by faults that need two."""
        return self.relays[1]

    async def read(self) -> None:
        """Read the messages that the stream stored since the last read."""
        async with connected(self.nats.url) as broker:
            self.stored += await stored(broker, STREAM, first=len(self.stored) + 1)

    async def grown(self, *, since: int, within: float) -> None:
        """Wait until the stream has more than ``since`` messages, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.read()
                while len(self.stored) <= since:
                    await asyncio.sleep(_POLL_SECONDS / 5)
                    await self.read()

    async def settled(self, fault: str) -> bool:
        """Wait until all events of a fault are settled; return False if the time is over first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.stuck_seconds):
                while not await self._all_ended(fault):  # noqa: ASYNC110 - servers send no event for this
                    await asyncio.sleep(_POLL_SECONDS)
                return True
        return False

    async def change_stream(self, **change: Any) -> None:
        """Change the stream's configuration; without a change, restore the description's."""
        await put_stream(self.nats.url, self.description, "UPDATE", change)

    async def unfinished(self) -> set[str] | None:
        """Return the IDs that are pending according to the table; None without such a query."""
        return await self._ids(self.description.table.unfinished)

    async def refused(self) -> set[str]:
        """Return the IDs that the relay gave up according to the table."""
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
        async with database_connection(self.dsn) as connection:
            return {str(row[0]) for row in await connection.fetch(query)}


@asynccontextmanager
async def open_stage(
    description: Description, *, folder: Path, work: Path, seed: int, stuck_seconds: float
) -> AsyncIterator[Stage]:
    """Start the servers, and create the relays; end all of them with the block.

    Raises:
        CommandError: a command of the description failed.
        DescriptionError: a command names an unknown placeholder.
    """
    async with AsyncExitStack() as stack:
        postgres = EmbeddedPostgres(folder / "postgres", settings=_POSTGRES)
        broker = EmbeddedNats(folder / "nats", config={"max_payload": MESSAGE_BYTES_MAX})
        await asyncio.gather(stack.enter_async_context(postgres), stack.enter_async_context(broker))
        await put_stream(broker.url, description, "CREATE", {})
        dsn = await create_database(postgres, description.table.create)
        to_postgres, database_url = await stack.enter_async_context(proxied(dsn))
        to_nats, nats_url = await stack.enter_async_context(proxied(broker.url))
        relays = await prepared_relays(
            description, folder, work, database_url=database_url, nats_url=nats_url
        )
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
            stuck_seconds=stuck_seconds,
            dsn=dsn,
        )
        for relay in relays:
            stack.push_async_callback(relay.kill)
        yield stage
