"""One of two workers is sick: its own links fail, and those of its sibling do not."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from tests.support.proxy import TcpProxy
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


async def seconds_until(done: Callable[[], Awaitable[object]]) -> float:
    """Return how long it takes until the healthy worker has done the work."""
    began = time.monotonic()
    await done()
    return time.monotonic() - began
