"""Three nats-servers that are one JetStream cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sea_mq_worker.embedded import EmbeddedNats
from sea_mq_worker.embedded.process import free_port

NODES = 3


@asynccontextmanager
async def nats_cluster(
    folder: Callable[[str], Path], *, room_bytes: int
) -> AsyncIterator[Sequence[EmbeddedNats]]:
    """Run them on loopback, each with a ``folder`` by its name; ``room_bytes`` are the store of each."""
    ports = [free_port() for _ in range(NODES)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    nodes = [
        EmbeddedNats(
            folder(f"node{number}"),
            config={
                "server_name": f"node{number}",
                "cluster": {"name": "test", "host": "127.0.0.1", "port": port, "routes": routes},
                "jetstream": {"max_file_store": room_bytes},
            },
        )
        for number, port in enumerate(ports)
    ]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(node) for node in nodes))
        yield nodes
