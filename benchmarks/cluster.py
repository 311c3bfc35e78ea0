"""Nats-servers of one cluster, all on this machine."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.errors import Error
from nats.js.api import StreamConfig
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from sea_mq_worker.embedded import EmbeddedNats
from sea_mq_worker.embedded.process import free_port

_PROBE = StreamConfig(name="PROBE", subjects=["probe"])
_UNTIL_PLACED: Mapping[str, Any] = {
    "stop": stop_after_delay(30.0),
    "wait": wait_fixed(0.1),
    "retry": retry_if_exception_type(Error),
    "reraise": True,
}


@asynccontextmanager
async def cluster(
    folder: Path, *, servers: int, config: Mapping[str, Any]
) -> AsyncIterator[Sequence[EmbeddedNats]]:
    """Start servers that can keep a stream together, and stop them in the end; one needs no cluster."""
    ports = [free_port() for _ in range(servers)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    async with AsyncExitStack() as stack:
        nodes = [
            EmbeddedNats(
                folder / f"nats{number}",
                config={**config, **(_of_cluster(number, port, routes) if servers > 1 else {})},
            )
            for number, port in enumerate(ports)
        ]
        await asyncio.gather(*map(stack.enter_async_context, nodes))
        await _until_ready(nodes[0].url, servers)
        yield nodes


def _of_cluster(number: int, port: int, routes: Sequence[str]) -> Mapping[str, Any]:
    return {
        "server_name": f"server{number}",
        "cluster": {"name": "benchmarks", "host": "127.0.0.1", "port": port, "routes": list(routes)},
    }


async def _until_ready(url: str, servers: int) -> None:
    """Wait until a stream can be placed: a healthy server may not know yet what the others can hold."""
    broker = await nats.connect(url)
    try:
        async for attempt in AsyncRetrying(**_UNTIL_PLACED):
            with attempt:
                await broker.jetstream().add_stream(_PROBE, num_replicas=servers)
                await broker.jetstream().delete_stream("PROBE")
    finally:
        await broker.close()
