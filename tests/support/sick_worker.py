"""One of two workers is sick: its own links fail, and those of its sibling do not."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from urllib.parse import urlsplit

from tests.support.proxy import TcpProxy
from tests.support.servers import unique
from tests.support.site import Site
from tests.support.worker import WorkerProcess

SLOW_SECONDS = 4.0
"""Lag of a slow link: longer than each time-out and lease of a site's fast settings."""

KINDS: Mapping[str, Callable[[TcpProxy], None]] = MappingProxyType({
    "refused": TcpProxy.refuse,
    "silent": TcpProxy.stall,
    "slow": lambda link: link.delay(SLOW_SECONDS),
    "answers wrongly": TcpProxy.garble,
})  # fmt: skip
"""What becomes of a link, by the words of the table of faults."""


@asynccontextmanager
async def sick_and_well(
    site: Site, *, sick: Mapping[str, object] = MappingProxyType({}), **settings: object
) -> AsyncIterator[tuple[WorkerProcess, WorkerProcess]]:
    """Run a worker whose links lead through the site's proxies, and then one that bypasses them.

    The first one is ready, and serves the lane with keys, before the second one starts. ``sick`` has settings
    of the first one alone.
    """
    async with site.worker(name="sick", **settings, **sick) as first:
        await first.ready()
        async with site.worker(name="well", **site.own_links, **settings) as second:
            await second.ready()
            yield first, second


@asynccontextmanager
async def own_role(site: Site) -> AsyncIterator[str]:
    """Give the sick worker a role of its own in PostgreSQL, with the password `s`; yield its name."""
    role = unique("sick_")
    await site.database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 's'")
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        await site.database.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {role}")
    yield role
    await site.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def logging_in(site: Site, **users: str) -> dict[str, object]:
    """Return a worker's URLs by setting, with these users and the password `s`."""
    parts = {name: urlsplit(site.target.environment[f"SEA_MQ_{name.upper()}"]) for name in users}
    return {
        name: part._replace(netloc=f"{users[name]}:s@{part.hostname}:{part.port}").geturl()
        for name, part in parts.items()
    }


async def seconds_until(done: Callable[[], Awaitable[object]]) -> float:
    """Return how long it takes until the healthy worker has done the work."""
    began = time.monotonic()
    await done()
    return time.monotonic() - began
