"""Workload: the same drain with larger events, and under other conditions of the servers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.counters import Figure
from benchmarks.drain import OUTBOX_ALONE, drain_with
from benchmarks.far import at_distance
from benchmarks.report import WORKER
from benchmarks.stage import Stage, open_stage

_BYTES_MAX = 200 * 2**20
"""Payload bytes of a backlog at most: a stream of the benchmarks holds 1 GiB."""
_DISTANCE_SECONDS = 0.001
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A difference from the drain without ordering keys.

    Attributes:
        padding: bytes added to each payload.
        distance_seconds: time that an answer of the database takes longer.
        checkpoint: a checkpoint between the inserts and the drain: PostgreSQL logs whole pages then.
        postgres: settings of a server of its own.
        nats: configuration of a server of its own.
        worker: settings of the worker.
        replicated: three servers keep the stream, each on this machine.
    """

    padding: int = 0
    distance_seconds: float = 0.0
    checkpoint: bool = False
    postgres: Mapping[str, str] = field(default_factory=dict)
    nats: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, str] = field(default_factory=dict)
    replicated: bool = False

    @property
    def has_own_servers(self) -> bool:
        """Whether the servers of the other workloads do not serve."""
        return bool(self.postgres or self.nats or self.replicated)


_SYNCED = {"jetstream": {"sync_interval": "always"}}
CONDITIONS: Mapping[str, Condition] = {
    WORKER: Condition(),
    "payload + 1 KiB": Condition(padding=_KIB),
    "payload + 10 KiB": Condition(padding=10 * _KIB),
    "payload + 100 KiB": Condition(padding=100 * _KIB),
    "database 1 ms away": Condition(distance_seconds=_DISTANCE_SECONDS),
    "checkpoint before": Condition(checkpoint=True),
    "wal_level = logical": Condition(postgres={"wal_level": "logical"}),
    "sync_interval: always": Condition(nats=_SYNCED),
    "the same, atomic batches": Condition(nats=_SYNCED, worker={"SEA_MQ_OUTBOX_PUBLISH_MODE": "atomic"}),
    "3 replicas": Condition(replicated=True),
}


async def conditions(stage: Stage, *, count: int) -> dict[str, Figure]:
    """Publish a backlog under each condition; one of large events is smaller, to fit the stream."""
    return {name: await _drain(stage, one, count=count) for name, one in CONDITIONS.items()}


async def _drain(stage: Stage, condition: Condition, *, count: int) -> Figure:
    fitting = min(count, _BYTES_MAX // condition.padding) if condition.padding else count
    async with _stage(stage, condition) as own, own.run() as run:
        url = run.settings["SEA_MQ_DATABASE_URL"]
        async with at_distance(url, seconds=condition.distance_seconds) as far:
            settings = {**OUTBOX_ALONE, **condition.worker, "SEA_MQ_DATABASE_URL": far}
            async with run.worker(settings) as worker:
                return await drain_with(
                    worker,
                    count=fitting,
                    per_key=0,
                    padding=condition.padding,
                    checkpoint=condition.checkpoint,
                )


@asynccontextmanager
async def _stage(stage: Stage, condition: Condition) -> AsyncIterator[Stage]:
    if not condition.has_own_servers:
        yield stage
        return
    with TemporaryDirectory(dir=stage.folder) as folder:
        async with open_stage(
            Path(folder),
            postgres_settings=condition.postgres,
            nats_config=condition.nats,
            replicated=condition.replicated,
        ) as own:
            yield own
