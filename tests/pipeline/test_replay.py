"""A replay puts events of the table and of the archive back, in order of each key, once."""

import asyncio
import json
import signal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.archive import KEPT
from sea_mq_worker.pipeline.jobs.replay import Matched, ReplayJobResult, Selection, replay
from sea_mq_worker.pipeline.lake import ARCHIVE, ERASED, Lake
from sea_mq_worker.pipeline.postgres import snapshot
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings
from tests.support.jetstream import connected, stored_messages
from tests.support.pipeline_settings import values_of, write_settings
from tests.support.rows import add_event
from tests.support.waiting import eventually
from tests.support.worker import Deployment, apply_streams, running

WINDOW_SECONDS = 1
EVENTS = 2500
KEYS = 50
FILL = f"""
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', jsonb_build_object('n', n), 'key-' || n % {KEYS}
  FROM generate_series(1, {EVENTS}) n"""
HERE = "SELECT o.* FROM outbox_events o ORDER BY seq"
NONE_IS_OPEN = "SELECT NOT EXISTS (SELECT FROM outbox_events WHERE is_open)"
REOPEN = "UPDATE outbox_events SET state = 'PENDING', published_at = NULL WHERE id = $1"


@dataclass(frozen=True, slots=True)
class Site:
    """An outbox, its stream and a lake; the stream soon forgets an id."""

    target: Deployment
    settings: Settings
    pool: asyncpg.Pool
    broker: NatsConnection
    spark: SparkSession
    folder: Path

    @property
    def lake(self) -> str:
        return str(self.folder / "lake")

    async def add(self, *state: str, **given: Any) -> UUID:
        return await add_event(self.pool, *state, **given)

    async def archive(self, where: str) -> None:
        """Copy events to the archive, as they are."""

        def copy() -> None:
            lake = Lake(self.spark, self.lake)
            lake.create(ARCHIVE)
            added = {"batch": fn.lit(None).cast("bigint"), "context": fn.lit(self.target.context)}
            with snapshot(self.settings) as held:
                rows = held.read(self.spark, "outbox_events", KEPT, where).withColumns(added)
                lake.insert_new(ARCHIVE.name, rows.withColumn("date", fn.to_date("published_at")), "false")

        await asyncio.to_thread(copy)

    async def replay(self, selection: Selection, **given: Any) -> ReplayJobResult:
        """Replay in a thread, since a job has a loop of its own."""
        rules = {"actor": "ann", "reason": "the stream lost them", "cap": EVENTS, "lake": self.lake} | given
        return await asyncio.to_thread(replay, self.spark, self.settings, selection, **rules)

    async def pending(self) -> set[UUID]:
        rows = await self.pool.fetch("SELECT id FROM outbox_events WHERE state = 'PENDING'")
        return {row["id"] for row in rows}

    async def actions(self) -> list[asyncpg.Record]:
        rows = await self.pool.fetch("SELECT * FROM operator_actions ORDER BY id")
        return list(rows)


@pytest.fixture
async def site(
    *,
    spark: SparkSession,
    outbound: Deployment,
    pool: asyncpg.Pool,
    nats_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Site]:
    await apply_streams(outbound, tmp_path / "streams", stream={"duplicate_window": WINDOW_SECONDS * 10**9})
    settings = write_settings(tmp_path / "settings.toml", monkeypatch, **values_of(outbound))
    async with connected(nats_url) as broker:
        yield Site(outbound, settings, pool, broker, spark, tmp_path)


async def test_events_are_chosen_by_each_part_of_a_selection_never_erased_ones_or_more_than_the_cap(
    site: Site,
) -> None:
    paid = await site.add("PUBLISHED", event_type="order's\\paid", ordering_key="a")
    dead = await site.add("DEAD", ordering_key="b")
    await site.add(ordering_key="a")
    old = await site.add("PUBLISHED", ordering_key="a", created_at=datetime.now(UTC) - timedelta(days=3))
    kept = await site.add("PUBLISHED", ordering_key="b")
    again = await site.add("PUBLISHED", ordering_key="b")
    erased = await site.add("PUBLISHED", ordering_key="b")
    await site.archive(f"id IN ('{old}', '{kept}', '{again}', '{erased}')")
    await site.pool.execute("DELETE FROM outbox_events WHERE id = $1", old)
    await site.pool.execute(REOPEN, again)
    lake = Lake(site.spark, site.lake)
    lake.create(ERASED)
    lake.insert_new(
        ERASED.name,
        site.spark.sql(f"SELECT sha2('{erased}', 256) AS id_sha256, now() AS erased_at"),
        "t.id_sha256 = s.id_sha256",
    )
    hour_ago, yesterday = (datetime.now(UTC) - timedelta(hours=n) for n in (1, 24))

    async def chosen(**given: Any) -> dict[str, tuple[int, int]]:
        look = await site.replay(Selection(**given), dry_run=True)
        assert look.dry_run
        assert look.matched == sum(one.table + one.archive for one in look.types)
        return {one.event_type: (one.table, one.archive) for one in look.types}

    assert await chosen(ids=(paid, dead, old, kept, again, erased), since=yesterday) == {
        "order.created": (2, 0),
        "order's\\paid": (1, 0),
    }
    assert await chosen(states=(EventState.PUBLISHED,), published_since=hour_ago) == {
        "order.created": (1, 1),
        "order's\\paid": (1, 0),
    }
    assert await chosen(event_types=("order's\\paid",)) == {"order's\\paid": (1, 0)}
    assert await chosen(states=(EventState.DEAD,), event_types=("order.created",)) == {
        "order.created": (1, 0)
    }
    assert await chosen(ordering_keys=("a",), until=yesterday) == {"order.created": (0, 1)}
    above = await site.replay(Selection(ids=(paid, dead)), cap=1)
    assert (above.matched, above.replayed, above.action) == (2, 0, None)
    assert await site.actions() == []
    with pytest.raises(PipelineError, match="there is no lake"):
        await site.replay(Selection(), lake=str(site.folder / "nowhere"))


async def test_an_archived_event_comes_back_as_it_was(site: Site) -> None:
    odd = {
        "payload": '{"n": 12345678901234567890123, "text": "\\u00e4\\ud83d\\ude00"}',
        "headers": '{"a": "b"}',
        "metadata": '{"traceparent": null}',
        "partition_key": "p",
        "ordering_key": "k",
        "correlation_id": "6a1ff2f6-0000-4000-8000-000000000001",
        "causation_id": "6a1ff2f6-0000-4000-8000-000000000002",
        "event_version": 3,
        "occurred_at": datetime(1492, 10, 12, 0, 59, 59, 123457, tzinfo=UTC),
    }
    ids = [await site.add("PUBLISHED", **odd), await site.add("PUBLISHED")]
    before = await site.pool.fetch(HERE)
    await site.archive("true")
    await site.pool.execute("DELETE FROM outbox_events")

    done = await site.replay(Selection(ids=tuple(ids)))

    assert (done.matched, done.replayed, done.skipped, done.stopped) == (2, 2, 0, False)
    assert done.types == (Matched(event_type="order.created", table=0, archive=2),)
    after = await site.pool.fetch(HERE)
    renewed = {"state", "is_open", "published_at", "publish_attempts", "first_attempt_at", "available_at"}
    for was, now in zip(before, after, strict=True):
        assert {**was, **{name: now[name] for name in renewed}} == dict(now)
        assert (now["state"], now["publish_attempts"]) == ("PENDING", 0)
        assert now["available_at"] >= was["published_at"]
    [action] = await site.actions()
    assert (action["action"], action["actor"], action["affected"], action["outcome"]) == (
        *("replay", "ann", 2, "done"),
    )
    assert json.loads(action["selection"])["ids"] == sorted(map(str, ids))


async def test_a_stopped_replay_continues_where_it_was_and_two_runs_exclude_each_other(site: Site) -> None:
    ids = [await site.add("PUBLISHED") for _ in range(6)]
    stop, advance = threading.Event(), load_queries("pipeline_replay")["advance"]

    def stop_soon(progress: str) -> None:
        if " 0 of" not in progress:
            stop.set()

    def meanwhile(statement: str, *given: Any) -> Callable[[str], None]:
        async def execute() -> None:
            other = await asyncpg.connect(site.settings.database_url.get_secret_value())
            await other.fetch(statement, *given)
            await other.close()

        return lambda _: asyncio.run(execute())

    begun = await site.replay(Selection(), lake=None, per_second=1, stop=stop, on_progress=stop_soon)
    assert begun.stopped
    assert 0 < begun.replayed < len(ids) - 1
    assert await site.pending() == set(ids[: begun.replayed])

    reopen = meanwhile(REOPEN, ids[-1])
    resumed = await site.replay(Selection(), lake=None, per_second=1, on_progress=reopen)
    assert resumed.resumed_after is not None
    assert (resumed.action, resumed.matched) == (begun.action, len(ids) - begun.replayed)
    assert (resumed.replayed, resumed.skipped, resumed.skipped_ids) == (
        *(resumed.matched - 1, 1, (str(ids[-1]),)),
    )
    assert await site.pending() == set(ids)

    more = tuple([await site.add("PUBLISHED") for _ in range(4)])
    overtake = meanwhile(advance.replace("= $2::bigint", "<> $2::bigint"), begun.action + 1, -1, 10**9)
    with pytest.raises(PipelineError, match="another run is continuing replay"):
        await site.replay(
            Selection(ids=more), lake=None, per_second=1,
            on_progress=lambda progress: " 0 of" in progress or overtake(progress),
        )  # fmt: skip
    assert next(row["affected"] for row in await site.actions()) == 5


async def second_copies(site: Site) -> dict[str, list[int]]:
    """Return where the stream has the second copy of each event, by key in the order of insertion."""
    places = defaultdict(list)
    for place, _, _, headers in await stored_messages(site.broker, site.target.stream):
        places[headers["Nats-Msg-Id"]].append(place)
    assert {len(copies) for copies in places.values()} == {2}
    by_key = defaultdict(list)
    for row in await site.pool.fetch(HERE):
        by_key[row["ordering_key"]].append(places[str(row["id"])][1])
    return by_key


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
async def test_a_killed_replay_is_resumed_and_publishes_each_key_in_order(site: Site) -> None:
    """A worker publishes beside it; half of the events are in the archive alone."""
    all_published = partial(site.pool.fetchval, NONE_IS_OPEN)
    command = ("pipeline", "replay", "--type", "order.created", "--published-until", "0s", "--yes")
    options = ("--lake", site.lake, "--cap", str(EVENTS), "--reason", "lost", "--master", "local[1]")
    slowly = ("--per-second", str(EVENTS // 5))
    patience = {"outbox_publish_timeout_seconds": WINDOW_SECONDS / 2}
    async with running(site.target, site.folder / "worker.log", **patience) as worker:
        await worker.ready()
        await site.pool.execute(FILL)
        await eventually(all_published, within=60)
        await site.archive("hashtext(id::text) % 2 = 0")
        gone = "id = ANY ($1::text[]::uuid[])"
        archived = Lake(site.spark, site.lake).read(ARCHIVE.name).select("id").collect()
        await site.pool.execute(f"DELETE FROM outbox_events WHERE {gone}", [row.id for row in archived])
        assert EVENTS / 4 < len(archived) < EVENTS * 3 / 4

        async with running(site.target, site.folder / "replay.log", *command, *options, *slowly) as killed:
            await eventually(
                site.actions,
                until=lambda found: any(row["affected"] >= EVENTS / 5 for row in found),
                within=150,
                what="a fifth is put back",
            )
            killed.send(signal.SIGKILL)
            await killed.ended()
        shown = {"published_until": datetime.now(UTC), "words": (("published_until", "0s"),)}
        selection = Selection(event_types=("order.created",), **shown)
        done = await site.replay(selection, per_second=EVENTS)
        await eventually(all_published, within=60)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0

    actions = await site.actions()
    assert [row["affected"] for row in actions] == [EVENTS]
    assert (done.resumed_after or 0) >= EVENTS / 5
    assert done.replayed == done.matched == EVENTS - done.resumed_after
    by_key = await second_copies(site)
    assert len(by_key) == KEYS
    assert all(places == sorted(places) for places in by_key.values())
