"""``python -m benchmarks.takeover``: kill workers under load; measure how soon their work moves again.

Exit code 1: a kill lost or doubled something, or broke an order. Linux only.
"""

import argparse
import asyncio
import dataclasses
import itertools
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.report import Progress, machine, write
from benchmarks.results import of_kills, on_terminal
from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.postgres.migrations import migrate
from tests.support.audit import out_of_order
from tests.support.handlers import Call
from tests.support.jetstream import SECOND, consumer_info
from tests.support.servers import database_connection
from tests.support.site import Site, site
from tests.support.waiting import eventually

WAYS: Mapping[str, bool] = MappingProxyType({"it is started again": False, "another stands by": True})
"""Each way, and whether a second worker runs beside the killed one."""
CONSUMER: Mapping[str, Any] = MappingProxyType({"ack_wait": 6 * SECOND})
"""A message that was fetched and not yet recorded waits for it."""
SETTINGS: Mapping[str, Any] = MappingProxyType({
    "outbox_publish_timeout_seconds": 10,
    "database_timeout_seconds": 5,
    "outbox_lease_seconds": 60,
    "inbox_lease_seconds": 60,
    "handler_timeout_seconds": 5,
})  # fmt: skip
_MOVES_WITHIN_SECONDS = 50.0
"""Below the leases, and far above what a busy machine takes."""
_QUIET_WITHIN_SECONDS = 120.0
_EVERY_SECONDS = 0.02
_KEYS = 50
_CALL_SECONDS = 0.05
_LEFT_AND_DONE = {
    "its claimed events": (
        "SELECT id FROM outbox_events WHERE split_part(claimed_by, '#', 1) = $1",
        "SELECT max(published_at), count(*) FROM outbox_events WHERE id = ANY ($1) AND state = 'PUBLISHED'",
    ),
    "its leased messages": (
        "SELECT message_id FROM inbox_messages WHERE split_part(locked_by, '#', 1) = $1",
        "SELECT max(processed_at), count(processed_at) FROM inbox_messages WHERE message_id = ANY ($1)",
    ),
}
_FIRST = {
    "first event of any worker": "SELECT min(published_at) FROM outbox_events WHERE published_at > $1",
    "first effect of any worker": "SELECT min(processed_at) FROM inbox_messages WHERE processed_at > $1",
}
_LATE = """
SELECT EXISTS (SELECT FROM outbox_events
                WHERE is_open AND created_at < clock_timestamp() - interval '1 second')
"""
_COMMITTED = "SELECT id::text, ordering_key FROM outbox_events ORDER BY seq"


@dataclass(slots=True, kw_only=True)
class Kills:
    """The results of one way.

    Attributes:
        seconds: by what is measured, from each kill until it was done; a kill that left nothing has no entry.
        lost: events that are not in the stream, and messages without an effect.
        doubled: further copies in the stream, and further effects.
        out_of_order: events that the stream has behind a later one of their key.
        repeated_calls: calls of the handler for a message that it had seen.
    """

    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in (*_LEFT_AND_DONE, *_FIRST)}
    )
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    repeated_calls: int = 0

    @property
    def harmless(self) -> bool:
        """Whether the kills cost time alone."""
        return not (self.lost or self.doubled or self.out_of_order)


async def kill_workers(made: Site, count: int, *, standby: bool, progress: Progress | None = None) -> Kills:
    """Kill a worker under load ``count`` times, and audit what came of all events and messages.

    Args:
        made: where; its worker has ``SETTINGS``, its durable ``CONSUMER``.
        count: number of kills; each is of the worker that has lived longest.
        standby: whether a second worker runs beside it; a killed one is always started again.
        progress: told of each kill.
    """
    found = Kills()
    made.handler.default = partial(_slow_effect, made)
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(database_connection(made.dsn))
        sent = await stack.enter_async_context(_traffic(made))
        at = dataclasses.replace(made, database=watch)
        names = [f"w{number}" for number in range(count + 1 + standby)]
        running = []
        for name in names[: 1 + standby]:
            running.append((name, await stack.enter_async_context(made.worker(name=name))))
            await running[-1][1].ready()
        for name in names[1 + standby :]:
            caught_up = partial(_is_caught_up, at)
            await eventually(caught_up, within=_MOVES_WITHIN_SECONDS, what="the traffic is caught up")
            killed, worker = running.pop(0)
            at_time = await watch.fetchval("SELECT clock_timestamp()")
            worker.send(signal.SIGKILL)
            await worker.ended()
            running.append((name, await stack.enter_async_context(made.worker(name=name))))
            await _measure(at, found, killed, at_time)
            await running[-1][1].ready()
            if progress:
                progress.tell(f"{killed} killed")
    async with made.worker(name="last"):
        await made.quiet(within=_QUIET_WITHIN_SECONDS)
    await _audit(made, sent, found)
    return found


async def _slow_effect(made: Site, call: Call, writer: Any) -> None:
    await asyncio.sleep(_CALL_SECONDS)
    await made.effects.take(call, writer)


@asynccontextmanager
async def _traffic(at: Site) -> AsyncIterator[set[str]]:
    """Commit events and send messages until the end of the block; yield the IDs of messages."""
    over = asyncio.Event()
    sent: set[str] = set()

    async def produce() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            await at.commit(2)
            await at.commit(2, ordering_key=f"k{number % _KEYS}")
            sent.update(await at.send(2))
            await asyncio.sleep(_EVERY_SECONDS)

    producing = asyncio.create_task(produce())
    try:
        yield sent
    finally:
        over.set()
        await producing


async def _is_caught_up(at: Site) -> bool:
    info = await consumer_info(at.broker, at.target.upstream_stream, at.target.durable)
    return not info["num_pending"] and not await at.database.fetchval(_LATE)


async def _measure(at: Site, to: Kills, killed: str, at_time: datetime) -> None:
    """Wait until all that the killed worker left is done, and others move."""
    left = {
        name: [row[0] for row in await at.database.fetch(query, killed)]
        for name, (query, _) in _LEFT_AND_DONE.items()
    }

    async def all_done(ids: Sequence[Any], query: str) -> datetime | None:
        last, count = await at.database.fetchrow(query, ids)
        found: datetime | None = last if count == len(ids) else None
        return found

    waits = {
        **{name: partial(all_done, ids, _LEFT_AND_DONE[name][1]) for name, ids in left.items() if ids},
        **{name: partial(at.database.fetchval, query, at_time) for name, query in _FIRST.items()},
    }
    for name, done in waits.items():
        moment = await eventually(done, within=_MOVES_WITHIN_SECONDS, what=f"{killed} was killed: {name}")
        to.seconds[name].append((moment - at_time).total_seconds())


async def _audit(made: Site, sent: set[str], to: Kills) -> None:
    """Compare the tables with the streams and the handler's effects."""
    copies = await made.copies()
    committed = [tuple(row) for row in await made.database.fetch(_COMMITTED)]
    events = {event_id for event_id, _ in committed}
    taken = made.effects.taken
    to.lost = len(events - copies.keys()) + len(sent - taken.keys())
    to.doubled = (copies - Counter(events)).total() + (taken - Counter(sent)).total()
    places = {event_id: place for place, event_id in enumerate(copies, start=1)}
    to.out_of_order = len(out_of_order(committed, places))
    to.repeated_calls = (made.effects.calls - Counter(made.effects.calls.keys())).total()


async def measure_ways(count: int) -> dict[str, Kills]:
    """Kill workers each way, on servers of their own."""
    progress = Progress(count * len(WAYS))
    found = {}
    with tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-") as name:
        folder = Path(name)
        async with EmbeddedPostgres(folder / "postgres") as postgres, EmbeddedNats(folder / "nats") as broker:
            for number, (way, standby) in enumerate(WAYS.items()):
                context = f"takeover{number}"
                async with database_connection(postgres.dsn) as server:
                    await server.execute(f"CREATE DATABASE {context}")
                dsn = postgres.dsn_for(context)
                await migrate(dsn)
                own = folder / context
                own.mkdir()
                async with site(
                    dsn=dsn, nats_url=broker.url, name=context, folder=own, consumer=CONSUMER, **SETTINGS
                ) as made:
                    found[way] = await kill_workers(made, count, standby=standby, progress=progress)
    return found


def main() -> int:
    """Read the options, run, write the JSON file and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills each way (%(default)s)")
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks-takeover.json"), help="file to write (%(default)s)"
    )
    options = parser.parse_args()
    found = asyncio.run(measure_ways(options.kills))
    report = {"machine": machine(), "ways": {way: dataclasses.asdict(kills) for way, kills in found.items()}}
    write(report, options.json)
    print(*on_terminal(of_kills(report)), sep="\n")
    return int(not all(kills.harmless for kills in found.values()))


if __name__ == "__main__":
    sys.exit(main())
