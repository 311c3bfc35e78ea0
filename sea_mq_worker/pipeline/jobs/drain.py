"""Drain: a backlog too large for one process, published by the worker's own relay in many Spark tasks.

Every task is a relay under a name and leases of its own, so running workers, other drains and a repeated or
speculative task cannot publish an event side by side, and the order of each key is kept. A relay is bound by
the speed of one core: as many tasks as the cluster has cores gain the most.

Tasks work in rounds of some seconds. A round's end brings the counts, and is where a drain stops when it is
asked to, with every claim settled or given back. Spark itself stops a task by SIGKILL: its claims then last
as long as their leases (``outbox_lease_seconds``), and what it published in that round is not counted. A task
that Spark starts again goes on with what is free.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TypeVar

import pyarrow as pa
import uvloop
from pyspark.sql import SparkSession

from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.bootstrap.drain import DrainBacklog, DrainShare, count_backlog, is_backlog_left, relay_for
from sea_mq_worker.domain.errors import ContractError, UnavailableError
from sea_mq_worker.pipeline.executor_settings import access_options, executor_settings
from sea_mq_worker.settings import Settings, SettingsError

ROUND_SECONDS = 10.0
NEEDS = ("database_url", "nats_url")

_DDL = "published bigint, dead bigint, trouble string, refused string"
_SCHEMA = pa.schema(
    [("published", pa.int64()), ("dead", pa.int64()), ("trouble", pa.string()), ("refused", pa.string())]
)
_AGAIN_SECONDS = 2.0
_COUNT_SHARE = 20.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """What a drain found and did.

    Attributes:
        backlog: events that were due at the start.
        tasks: relays side by side.
        published: events that the tasks published, newer ones included; workers beside them took the others.
        dead: events that ended DEAD in the tasks' hands.
        due: of the backlog, still due: held by a relay, or behind an earlier event of their key.
        postponed: of the backlog, failed and tried again later.
        seconds: duration.
        per_second: ``published`` by the second.
        stopped: it was asked to stop.
    """

    backlog: int
    tasks: int
    published: int = 0
    dead: int = 0
    due: int
    postponed: int
    seconds: float = 0.0
    per_second: float = 0.0
    stopped: bool = False

    @property
    def left(self) -> int:
        """Events of the backlog that are still to be published; dead ones are not among them."""
        return self.due + self.postponed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Where a drain is after a round.

    Attributes:
        left: of the backlog, still to be published.
        published: by the tasks so far.
        per_second: by the tasks in the last round.
        seconds_left: at the pace of the backlog's fall so far; None: it does not fall.
        trouble: what a task waits for, or empty.
    """

    left: int
    published: int
    per_second: float
    seconds_left: float | None
    trouble: str


OnProgress = Callable[[DrainProgress], None]


async def drain(
    spark: SparkSession,
    settings: Settings,
    *,
    stop: asyncio.Event,
    on_progress: OnProgress,
    tasks: int | None = None,
    until_empty: bool = False,
    dry_run: bool = False,
    round_seconds: float = ROUND_SECONDS,
) -> DrainResult:
    """Publish the events that are due now, and return when none of them can be published any more.

    Events that have failed and wait for a later retry do not keep it, dead ones neither; claims of others do,
    until they are settled or their leases run out.

    Args:
        spark: where the tasks run; each has at most ``database_pool_max`` + 1 connections to PostgreSQL and
            one to NATS.
        settings: the driver's; each task reads its own.
        stop: ends it after the round under way.
        on_progress: is told after each round.
        tasks: relays side by side; as many as the cluster has cores unless given.
        until_empty: go on until nothing at all is due, what comes in meanwhile included.
        dry_run: only count.
        round_seconds: how long a task runs before it tells its counts.

    Raises:
        ContractError: PostgreSQL, the stream or an executor's settings are not as the worker needs them.
        UnavailableError: PostgreSQL is away at the start; later it is waited for.
    """
    count = tasks or spark.sparkContext.defaultParallelism
    began = time.monotonic()
    found = await count_backlog(settings, since=None)
    since = None if until_empty else found.at
    if dry_run:
        return DrainResult(backlog=found.due, tasks=count, due=found.due, postponed=found.postponed)
    run = _Run(settings, since, stop, on_progress, found)
    relay = _Relay(access_options(), since.isoformat() if since else "", round_seconds)
    while not stop.is_set() and await run.patiently(lambda: is_backlog_left(settings, since=since)):
        round_began = time.monotonic()
        shares = await asyncio.to_thread(_round, spark, relay, count)
        await run.add(shares, time.monotonic() - round_began)
    left = await run.patiently(lambda: count_backlog(settings, since=since)) or run.known
    seconds = time.monotonic() - began
    return DrainResult(
        backlog=found.due,
        tasks=count,
        published=run.published,
        dead=run.dead,
        due=left.due,
        postponed=left.postponed,
        seconds=seconds,
        per_second=run.published / seconds,
        stopped=stop.is_set(),
    )


class _Run:
    """The driver's notes between rounds."""

    def __init__(
        self,
        settings: Settings,
        since: datetime | None,
        stop: asyncio.Event,
        on_progress: OnProgress,
        found: DrainBacklog,
    ) -> None:
        self.known = found
        self.published = 0
        self.dead = 0
        self._settings = settings
        self._since = since
        self._stop = stop
        self._on_progress = on_progress
        self._first = found.due
        self._began = time.monotonic()
        self._count_at = 0.0
        self._published_at_count = 0

    async def patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        """Ask PostgreSQL until it answers; None: asked to stop while it was away."""
        while True:
            try:
                return await ask()
            except UnavailableError as error:
                self._tell(0.0, str(error))
            if self._stop.is_set():
                return None
            await sleep_or_stop(self._stop, seconds=_AGAIN_SECONDS)

    async def add(self, shares: list[DrainShare], seconds: float) -> None:
        """Take in a round's counts, and tell how it stands."""
        published = sum(share.published for share in shares)
        self.published += published
        self.dead += sum(share.dead for share in shares)
        await self._count()
        self._tell(published / seconds, next((s.trouble for s in shares if s.trouble), ""))

    async def _count(self) -> None:
        """Count for at most a twentieth of the time; between two counts, the tasks' own work is known."""
        began = time.monotonic()
        if began < self._count_at:
            return
        counted = await self.patiently(lambda: count_backlog(self._settings, since=self._since))
        if counted is not None:
            self.known = counted
            self._published_at_count = self.published
        now = time.monotonic()
        self._count_at = now + _COUNT_SHARE * (now - began)

    def _tell(self, per_second: float, trouble: str) -> None:
        left = max(0, self.known.due + self.known.postponed - (self.published - self._published_at_count))
        pace = (self._first - left) / (time.monotonic() - self._began)
        self._on_progress(
            DrainProgress(
                left=left,
                published=self.published,
                per_second=per_second,
                seconds_left=left / pace if pace > 0 else None,
                trouble=trouble,
            )
        )


@dataclass(frozen=True, slots=True)
class _Relay:
    """What a task runs, for ``DataFrame.mapInArrow``; its input only says that it is one task."""

    options: Mapping[str, str]
    since: str
    seconds: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Relay for a round, and tell what was done; a contract that is broken is told, not raised."""
        for _ in batches:
            pass
        share, refused = DrainShare(), ""
        try:
            settings = executor_settings(self.options, needs=NEEDS)
            since = datetime.fromisoformat(self.since) if self.since else None
            share = uvloop.run(relay_for(settings, seconds=self.seconds, since=since))
        except (ContractError, SettingsError) as error:
            refused = str(error)
        yield pa.RecordBatch.from_pylist([asdict(share) | {"refused": refused}], schema=_SCHEMA)


def _round(spark: SparkSession, relay: _Relay, count: int) -> list[DrainShare]:
    rows = spark.range(0, count, 1, numPartitions=count).mapInArrow(relay, _DDL).collect()
    for row in rows:
        if row.refused:
            raise ContractError(row.refused)
    return [DrainShare(published=row.published, dead=row.dead, trouble=row.trouble) for row in rows]
