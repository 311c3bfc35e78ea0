"""A replay puts events of the table and of the archive back, in order of each key, once."""

import asyncio
import json
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.replay.job import Matched, ReplayJobResult, replay
from sea_mq_worker.pipeline.jobs.replay.selection import Selection
from sea_mq_worker.pipeline.jobs.replay.store import ReplayStore
from sea_mq_worker.pipeline.lake.erased_ids import record_erased
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE
from sea_mq_worker.pipeline.lake.table import LakeTable, Watermark
from sea_mq_worker.pipeline.snapshot import read_outbox, snapshot
from sea_mq_worker.settings import Settings
from tests.support.jetstream import connected, stored_messages
from tests.support.partitions import id_of_day
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

    def archive(self, condition: str, *, batch: int = 1) -> None:
        """Copy events to the archive, as they are."""
        columns = [name for name in ARCHIVE.schema.names if name not in {"batch", "context", "date"}]
        table = LakeTable(self.lake, ARCHIVE)
        added = {"batch": F.lit(batch).cast("bigint"), "context": F.lit(self.target.context)}
        with snapshot(self.settings) as held:
            rows = read_outbox(self.spark, held, columns=columns).where(condition)
            rows = rows.withColumns(added | {"date": F.to_date("published_at")})
            table.commit(table.write(rows), Watermark("by hand", batch))

    async def replay(self, selection: Selection, **given: Any) -> ReplayJobResult:
        rules = {"actor": "ann", "reason": "the stream lost them", "cap": EVENTS, "lake": self.lake} | given
        stop = asyncio.Event()
        return await replay(self.spark, self.settings, selection, stop=stop, on_progress=print, **rules)

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


# --- which


async def test_events_are_chosen_by_each_part_of_a_selection_and_none_is_replayed_above_the_cap(
    site: Site,
) -> None:
    paid = await site.add("PUBLISHED", event_type="order.paid", ordering_key="a")
    dead = await site.add("DEAD", ordering_key="b")
    await site.add(ordering_key="a")
    old = await site.add("PUBLISHED", ordering_key="a", created_at=datetime.now(UTC) - timedelta(days=3))
    kept = await site.add("PUBLISHED", ordering_key="b")
    again = await site.add("PUBLISHED", ordering_key="b")
    site.archive(f"id IN ('{old}', '{kept}', '{again}')")
    await site.pool.execute("DELETE FROM outbox_events WHERE id = $1", old)
    open_ = "UPDATE outbox_events SET state = 'PENDING', published_at = NULL WHERE id = $1"
    await site.pool.execute(open_, again)
    hour_ago, yesterday = (datetime.now(UTC) - timedelta(hours=n) for n in (1, 24))

    async def chosen(**given: Any) -> dict[str, tuple[int, int]]:
        look = await site.replay(Selection(**given), dry_run=True)
        assert look.matched == sum(one.table + one.archive for one in look.types)
        return {one.event_type: (one.table, one.archive) for one in look.types}

    assert await chosen(ids=(paid, dead, old, kept, again), since=yesterday) == {
        "order.created": (2, 0),
        "order.paid": (1, 0),
    }
    assert await chosen(states=(EventState.PUBLISHED,), published_since=hour_ago) == {
        "order.created": (1, 1),
        "order.paid": (1, 0),
    }
    assert await chosen(states=(EventState.DEAD,), event_types=("order.created",)) == {
        "order.created": (1, 0)
    }
    assert await chosen(ordering_keys=("a",), until=yesterday) == {"order.created": (0, 1)}
    above = await site.replay(Selection(ids=(paid, dead)), cap=1)
    assert (above.matched, above.replayed, above.action) == (2, 0, None)
    assert await site.actions() == []


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
        "occurred_at": datetime(2024, 3, 31, 0, 59, 59, 123457, tzinfo=UTC),
    }
    ids = [await site.add("PUBLISHED", **odd), await site.add("PUBLISHED")]
    before = await site.pool.fetch(HERE)
    site.archive("true")
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
    action = (await site.actions())[0]
    assert (action["action"], action["actor"], action["affected"]) == ("replay", "ann", 2)
    assert json.loads(action["selection"])["ids"] == sorted(map(str, ids))


async def test_erased_events_stay_away_from_a_replay_also_after_a_restored_backup(site: Site) -> None:
    in_archive, in_table, kept = [await site.add("PUBLISHED") for _ in range(3)]
    site.archive(f"id IN ('{in_archive}', '{kept}')")
    await site.pool.execute("DELETE FROM outbox_events WHERE id = $1", in_archive)
    record_erased(site.lake, [str(in_archive), str(in_table)])

    done = await site.replay(Selection(ids=(in_archive, in_table, kept)))

    assert (done.matched, done.replayed) == (1, 1)
    assert await site.pending() == {kept}


async def test_a_replay_reads_only_the_archives_files_that_can_hold_its_events(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.pool.execute("ALTER TABLE outbox_events DISABLE TRIGGER USER")
    days = (40, 30, 20, 10)
    ids = [id_of_day(day) for day in days]
    for batch, (day, event) in enumerate(zip(days, ids, strict=True), start=1):
        at = datetime.now(UTC) - timedelta(days=day)
        await site.add("PUBLISHED", id=event, created_at=at, event_type=f"order.{day}")
        await site.pool.execute("UPDATE outbox_events SET published_at = $1 WHERE id = $2", at, event)
        site.archive(f"id = '{event}'", batch=batch)
    read = LakeTable.read
    files: list[tuple[str, int]] = []

    def counted(*given: Any, **named: Any) -> DataFrame:
        rows = read(*given, **named)
        files.append(("payloads" if "payload" in rows.columns else "keys", len(rows.inputFiles())))
        return rows

    monkeypatch.setattr(LakeTable, "read", counted)
    since = datetime.now(UTC) - timedelta(days=25)
    for selection, keys, payloads in (
        (Selection(ids=(ids[1],)), 1, 1),
        (Selection(ids=(ids[0], ids[3])), 2, 4),
        (Selection(event_types=("order.30",)), 4, 1),
        (Selection(published_since=since), 2, 2),
        (Selection(since=since), 2, 2),
    ):
        files.clear()
        await site.pool.execute("DELETE FROM outbox_events")
        done = await site.replay(selection)
        assert (done.replayed, files) == (payloads % 4 or 2, [("keys", keys), ("payloads", payloads)])


# --- how


async def test_events_changed_meanwhile_are_reported_and_two_runs_exclude_each_other(site: Site) -> None:
    ids = [await site.add("PUBLISHED") for _ in range(3)]
    seqs = [row["seq"] for row in await site.pool.fetch(HERE)]
    batch = [Row(id=str(one), seq=seq, archived=False) for one, seq in zip(ids[:2], seqs[:2], strict=True)]
    await site.pool.execute(
        "UPDATE outbox_events SET state = 'PENDING', published_at = NULL WHERE id = $1", ids[0]
    )

    store = ReplayStore(site.pool)
    action = await store.begin("{}", "{}", actor="ann", reason="test")
    assert await store.put_back(action.id, batch, after=0) == {str(ids[1])}
    with pytest.raises(PipelineError, match="another run"):
        await store.put_back(action.id, batch, after=0)

    assert await site.pending() == set(ids[:2])
    assert [row["affected"] for row in await site.actions()] == [1]


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
        site.archive("hash(id) % 2 = 0")
        gone = "id = ANY ($1::text[]::uuid[])"
        archived = LakeTable(site.lake, ARCHIVE).read(site.spark).select("id").collect()
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
