"""Keeping one lease while something takes its time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sea_mq_worker.domain.errors import StoreUnavailableError
from sea_mq_worker.domain.inbox_results import Lease
from sea_mq_worker.ports.inbox import InboxRepository

_EXTENSIONS_PER_LEASE = 3


@contextlib.asynccontextmanager
async def renewing_lease(
    inbox: InboxRepository, lease: Lease, *, lease_seconds: float
) -> AsyncIterator[None]:
    """Extend a lease for the length of a block; a database that is away is asked again a little later."""

    async def extend() -> None:
        while True:
            await asyncio.sleep(lease_seconds / _EXTENSIONS_PER_LEASE)
            with contextlib.suppress(StoreUnavailableError):
                await inbox.extend([lease], lease_seconds=lease_seconds)

    extending = asyncio.create_task(extend())
    try:
        yield
    finally:
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)
