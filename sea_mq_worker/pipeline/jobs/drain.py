"""Publish a backlog that is too large for one process, with the worker's own publisher in many Spark tasks.

Each task is a publisher with its own name and leases. Therefore running workers, other drains and a repeated
or speculative task cannot publish an event at the same time, and the order of each key is kept. One core
limits the speed of a publisher, so one task per core of the cluster is fastest.

Tasks work in rounds of some seconds. At the end of a round each task returns its counts, with every claim
settled or given back. A requested stop takes effect there. Spark itself stops a task by SIGKILL. Its claims
then last until their leases expire (``outbox_lease_seconds``), and the events that it published in this round
are not counted. A task that Spark restarts continues with the events that are not claimed.
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
from sea_mq_worker.pipeline.session import described, parallelism
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
    """Result of a drain.

    Attributes:
        backlog: events that were due at the start.
        tasks: number of parallel publishers.
        published: events published by the tasks, including new events; workers published the others.
        dead: events that became DEAD in the tasks.
        due: events of the backlog that are still due: claimed, or waiting for an earlier event of their key.
        postponed: events of the backlog that failed and wait for their retry.
        seconds: duration.
        per_second: ``published`` divided by ``seconds``.
        stopped: whether a stop was requested.
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
        """Events of the backlog that are still to be published, without dead events."""
        return self.due + self.postponed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Progress of a drain after a round.

    Attributes:
        left: events of the backlog that are still to be published.
        published: events published by the tasks so far.
        per_second: events published per second in the last round.
        seconds_left: estimate from the backlog's decrease so far; None: the backlog does not decrease.
        trouble: the error that a task waits out, or empty.
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
    """Publish the events that are due now; return when none of them can be published any more.

    The drain does not wait for dead events, nor for failed events that wait for a retry. It waits for events
    claimed by others until they are settled or their leases expire.

    Args:
        spark: the session that runs the tasks. Each task has at most ``database_pool_max`` + 1 connections to
            PostgreSQL and one to NATS.
        settings: the driver's settings; each task loads its own.
        stop: ends the drain after the current round.
        on_progress: called after each round.
        tasks: number of parallel publishers; default: the cluster's number of cores.
        until_empty: continue until no event is due, including new events.
        dry_run: only count.
        round_seconds: time that a task runs before it returns its counts.

    Raises:
        ContractError: PostgreSQL, the stream or an executor's settings do not meet the worker's requirements.
        UnavailableError: PostgreSQL is unavailable at the start; later outages are waited out.
    """
    count = tasks or parallelism(spark)
    began = time.monotonic()
    found = await count_backlog(settings, since=None)
    since = None if until_empty else found.at
    if dry_run:
        return DrainResult(backlog=found.due, tasks=count, due=found.due, postponed=found.postponed)
    run = _DrainRun(settings, since, stop, on_progress, found)
    relay = _Relay(access_options(), since.isoformat() if since else "", round_seconds)
    while not stop.is_set() and await run.when_available(lambda: is_backlog_left(settings, since=since)):
        round_began = time.monotonic()
        shares = await asyncio.to_thread(_round, spark, relay, count)
        await run.add(shares, time.monotonic() - round_began)
    left = await run.when_available(lambda: count_backlog(settings, since=since)) or run.known
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


class _DrainRun:
    """The driver's state between rounds."""

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

    async def when_available(self, call: Callable[[], Awaitable[_T]]) -> _T | None:
        """Repeat the query until PostgreSQL is available; None: a stop was requested during the outage."""
        while True:
            try:
                return await call()
            except UnavailableError as error:
                self._report(0.0, str(error))
            if self._stop.is_set():
                return None
            await sleep_or_stop(self._stop, seconds=_AGAIN_SECONDS)

    async def add(self, shares: list[DrainShare], seconds: float) -> None:
        """Add a round's counts and report the progress."""
        published = sum(share.published for share in shares)
        self.published += published
        self.dead += sum(share.dead for share in shares)
        await self._count()
        self._report(published / seconds, next((s.trouble for s in shares if s.trouble), ""))

    async def _count(self) -> None:
        """Count for at most a twentieth of the time; between counts, rely on the tasks' own counts."""
        began = time.monotonic()
        if began < self._count_at:
            return
        counted = await self.when_available(lambda: count_backlog(self._settings, since=self._since))
        if counted is not None:
            self.known = counted
            self._published_at_count = self.published
        now = time.monotonic()
        self._count_at = now + _COUNT_SHARE * (now - began)

    def _report(self, per_second: float, trouble: str) -> None:
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
    """The function of a task, for ``DataFrame.mapInArrow``; its input is ignored."""

    options: Mapping[str, str]
    since: str
    seconds: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Publish for one round and yield the counts; return a ContractError in ``refused``."""
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
    with described(spark, f"drain: {count} publishers"):
        rows = spark.range(0, count, 1, numPartitions=count).mapInArrow(relay, _DDL).collect()
    for row in rows:
        if row.refused:
            raise ContractError(row.refused)
    return [DrainShare(published=row.published, dead=row.dead, trouble=row.trouble) for row in rows]
