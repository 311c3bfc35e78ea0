"""The servers of a run, each behind a proxy, and the relay between them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from kit.audit import at, identity
from kit.description import Description
from kit.ledger import Ledger
from kit.process import KeptProcess
from kit.provision import STREAM, create_database, prepared_relays, put_stream
from kit.streams import Message, stored
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.jetstream import connected
from tests.support.proxy import TcpProxy, proxied

MESSAGE_BYTES_MAX = 64 * 1024
_LOOK_SECONDS = 0.1
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
    relays: Sequence[KeptProcess]
    patience_seconds: float
    dsn: str
    stored: list[Message] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    """What was wrong when the relay was asked to stop; empty texts for what was right."""

    @property
    def relay(self) -> KeptProcess:
        """The first instance, which always runs."""
        return self.relays[0]

    @property
    def second(self) -> KeptProcess:
        """The other instance, started by the faults that want two."""
        return self.relays[1]

    async def read(self) -> None:
        """Take in what the stream has got since the last time."""
        async with connected(self.nats.url) as broker:
            self.stored += await stored(broker, STREAM, first=len(self.stored) + 1)

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
        await put_stream(self.nats.url, self.description, "UPDATE", change)

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
            patience_seconds=patience,
            dsn=dsn,
        )
        for relay in relays:
            stack.push_async_callback(relay.kill)
        yield stage
