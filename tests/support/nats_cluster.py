"""Three nats-servers that are one JetStream cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.embedded import EmbeddedNats
from sea_mq_worker.embedded.process import free_port
from tests.support.jetstream import connected, create_stream
from tests.support.waiting import eventually

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
        async with connected(nodes[0].url) as connection:
            await eventually(partial(_places_copies, connection), what="each node knows the others' room")
        yield nodes


async def _places_copies(connection: NatsConnection) -> bool:
    """A node that is healthy has not yet heard of the room that the others have."""
    try:
        await create_stream(connection, "PROBE", "probe", num_replicas=NODES)
    except WorkerError:
        return False
    await api(connection, "STREAM.DELETE.PROBE")
    return True
