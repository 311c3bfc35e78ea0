"""Three nats-servers that are one JetStream cluster."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path

from sea_mq_worker.dev.servers import EmbeddedNats, free_port
from sea_mq_worker.errors import WorkerError
from sea_mq_worker.nats.connection import NatsConnection, api
from tests.support.jetstream import connected, create_stream
from tests.support.proxy import TcpProxy, proxied
from tests.support.waiting import eventually

NODES = 3
NOWHERE = "127.0.0.1:1"
"""Told to other nodes as the own address, so that no route goes past its proxy."""


@dataclass(frozen=True, slots=True)
class NatsCluster:
    """The nodes by number; the proxies of their routes, where there are some, by the numbers of both ends."""

    nodes: Sequence[EmbeddedNats]
    routes: Mapping[tuple[int, int], TcpProxy]

    @property
    def urls(self) -> str:
        """All nodes, as a client's setting lists them."""
        return ",".join(node.url for node in self.nodes)

    def cut_off(self, number: int) -> None:
        """Let nothing pass between a node and the others."""
        for ends, proxy in self.routes.items():
            if number in ends:
                proxy.stall()

    def join_again(self) -> None:
        """Let everything pass."""
        for proxy in self.routes.values():
            proxy.heal()

    async def empty(self, number: int) -> None:
        """Kill a node and bring it back without its data."""
        node = self.nodes[number]
        await node.kill()
        shutil.rmtree(node.folder / "jetstream")
        await node.start()

    def named(self, name: str) -> int:
        """Return the number of the node that a leader's name stands for."""
        return int(name.removeprefix("node"))


@asynccontextmanager
async def nats_cluster(
    folder: Callable[[str], Path], *, room_bytes: int, may_be_cut: bool = False
) -> AsyncIterator[NatsCluster]:
    """Run them on loopback, each with a ``folder`` by its name; ``room_bytes`` are the store of each.

    ``may_be_cut``: the routes lead through proxies, which work while the event loop does.
    """
    ports = [free_port() for _ in range(NODES)]
    async with AsyncExitStack() as stack:
        routes, urls = {}, {}
        for ends in permutations(range(NODES), 2):
            urls[ends] = f"nats://127.0.0.1:{ports[ends[1]]}"
            if may_be_cut:
                routes[ends], urls[ends] = await stack.enter_async_context(proxied(urls[ends]))
        nodes = [
            EmbeddedNats(
                folder(f"node{number}"),
                config={
                    "server_name": f"node{number}",
                    "cluster": {
                        "name": "test",
                        "host": "127.0.0.1",
                        "port": port,
                        "routes": [url for (start, _), url in urls.items() if start == number],
                        **({"advertise": NOWHERE} if may_be_cut else {}),
                    },
                    "jetstream": {"max_file_store": room_bytes},
                },
            )
            for number, port in enumerate(ports)
        ]
        await asyncio.gather(*(stack.enter_async_context(node) for node in nodes))
        async with connected(nodes[0].url) as connection:
            await eventually(partial(_places_copies, connection), what="each node knows the others' room")
        yield NatsCluster(nodes, routes)


async def _places_copies(connection: NatsConnection) -> bool:
    """A node that is healthy has not yet heard of the room that the others have."""
    try:
        await create_stream(connection, "PROBE", "probe", num_replicas=NODES)
        await api(connection, "STREAM.DELETE.PROBE")
    except WorkerError:
        return False
    return True
