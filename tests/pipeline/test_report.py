"""Each figure of the report is the one that a count of the rows gives, and a period costs what it holds."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.report import Bin, Group, Report, report
from sea_mq_worker.pipeline.lake import ARCHIVE, GOLD, Lake, Table
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
CONTEXT = "sea"
NEVER = datetime.max.replace(tzinfo=UTC)
PERIODS = (
    (BEGIN + timedelta(seconds=15), BEGIN + timedelta(minutes=2, seconds=5), 1),
    (BEGIN - timedelta(hours=1), BEGIN + timedelta(minutes=3), 60),
    (BEGIN + timedelta(days=1), BEGIN + timedelta(days=2), 900),
    (None, None, 7 * 86_400),
)

Row = dict[str, Any]


async def test_every_figure_is_the_one_that_a_count_of_the_rows_gives(
    spark: SparkSession, settings: Settings, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    lake, random, now = str(tmp_path / "lake"), Random(1), datetime.now(UTC)
    outbox, archive = events(random, now)
    inbox, gold = [message(random, now) for _ in range(200)], minutes(random)
    await fill(pool, outbox, inbox)
    await asyncio.to_thread(write, spark, lake, ARCHIVE, archive)
    await asyncio.to_thread(write, spark, lake, GOLD, gold)
    own = [row | {"archived": True} for row in archive if row["context"] == CONTEXT]
    rows = current([*own, *(row | {"archived": False} for row in outbox)])

    for chosen_since, chosen_until, step in PERIODS:
        found = await asyncio.to_thread(
            report, spark, settings, since=chosen_since, until=chosen_until, lake=lake
        )

        first = min([row["created_at"] for row in (*outbox, *own)] + [row["received_at"] for row in inbox])
        since, until = chosen_since or first.replace(microsecond=0), chosen_until or found.at
        assert (found.since, found.until, found.bin_seconds) == (since, until, step)
        compare(found, rows, inbox, gold)
    waiting = [row for row in rows if row["state"] == "PENDING"]
    assert sum(each.count for each in found.backlog if each.name == "outbox PENDING") == len(waiting)
    assert {each.detail for each in found.backlog} <= {
        *("under 1 minute", "1 to 10 minutes", "10 to 60 minutes", "1 to 24 hours", "over 1 day")
    }


async def test_a_report_of_a_day_opens_no_file_of_another_day(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    lake, days = tmp_path / "lake", [BEGIN + timedelta(days=n, hours=12) for n in range(3)]
    usual = {"event_type": "a.b", "context": CONTEXT}
    archived = [
        {
            "id": str(UUID(int=n)),
            "created_at": day,
            "occurred_at": day,
            "published_at": day,
            "date": day.date(),
        }
        | usual
        for n, day in enumerate(days)
    ]
    stored = [{"minute": day, "events": 5, "date": day.date()} | usual for day in days]
    await asyncio.to_thread(write, spark, str(lake), ARCHIVE, archived)
    await asyncio.to_thread(write, spark, str(lake), GOLD, stored)
    for day in (days[0], days[2]):
        for folder in lake.glob(f"*/*/date={day.date()}"):
            shutil.rmtree(folder)

    begin = BEGIN + timedelta(days=1)
    end = begin + timedelta(days=1)
    found = await asyncio.to_thread(report, spark, settings, since=begin, until=end, lake=str(lake))

    assert found.totals.archived == 1
    assert sum(each.count for each in found.stream_bins) == 5
    with pytest.raises(PipelineError, match="there is no lake"):
        await asyncio.to_thread(report, spark, settings, lake=str(tmp_path / "nowhere"))


async def test_dead_letters_come_from_their_stream_and_the_last_of_repeated_headers_counts(
    spark: SparkSession, stream: Stream, settings_with: Callable[..., Settings]
) -> None:
    await stream.store(2, **{"Dlq-Reason": "REJECTED", "Dlq-Original-Subject": "a.event.b.v1"})
    await stream.store_raw(b"NATS/1.0\r\nDlq-Reason: REJECTED\r\nDlq-Reason: foreign\r\n\r\n", b"x")
    settings = settings_with(dlq_stream=stream.name)
    found = await asyncio.to_thread(report, spark, settings)

    assert [(each.name, each.detail, each.count) for each in found.dead_letters] == [
        ("REJECTED", "a.event.b.v1", 2),
        ("foreign", "unknown", 1),
    ]
    assert {each.name: each.count for each in found.dead_letter_bins} == {"REJECTED": 2, "others": 1}
    assert (found.totals.dead_letters, found.dead_letter_source) == (3, stream.name)


def compare(found: Report, rows: Sequence[Row], inbox: Sequence[Row], gold: Sequence[Row]) -> None:
    """Count the figures of the period one by one."""
    since, until, step = found.since, found.until, found.bin_seconds

    def within(rows: Iterable[Row], name: str) -> list[Row]:
        return [row for row in rows if row[name] is not None and since <= row[name] < until]

    written, published = within(rows, "created_at"), within(rows, "published_at")
    received, processed = within(inbox, "received_at"), within(inbox, "processed_at")
    given_up = within(inbox, "dead_lettered_at")
    dead = [row for row in written if row["state"] == "DEAD"]
    keyed = [row for row in written if row["ordering_key"]]
    counted = {
        "written": (written, "created_at"),
        "published": (published, "published_at"),
        "received": (received, "received_at"),
        "processed": (processed, "processed_at"),
        "outbox_retried": ([row for row in published if row["publish_attempts"] > 1], "published_at"),
        "inbox_retried": ([row for row in processed if row["attempts"] > 1], "processed_at"),
    }
    assert asdict(found.totals) == {
        **{name: len(rows) for name, (rows, _) in counted.items()},
        "written_bytes": sum(map(size, written)),
        "archived": sum(row["archived"] for row in written),
        "dead": len(dead),
        "dead_lettered": len(given_up),
        "dead_letters": len(given_up),
        "keys": len({row["ordering_key"] for row in keyed}),
        "types": len({row["event_type"] for row in written}),
    }
    by_bin = {name: Counter(begin(row[time], step) for row in rows) for name, (rows, time) in counted.items()}
    count = ceil((until - begin(since, step)).total_seconds() / step)
    begins = [begin(since, step) + timedelta(seconds=step * n) for n in range(count)]
    assert found.bins == [Bin(at, **{name: counts[at] for name, counts in by_bin.items()}) for at in begins]
    assert [(each.name, each.detail, each.count) for each in found.attempts] == [
        (way, str(number), count)
        for way, rows, name in (("outbox", published, "publish_attempts"), ("inbox", processed, "attempts"))
        for number, count in sorted(Counter(min(20, row[name]) for row in rows).items())
    ]
    errors = [
        ((row["publish_error"] or "no error recorded").split(":")[0][:80], row["event_type"]) for row in dead
    ]
    assert named(found.dead) == Counter(errors)
    assert named(found.dead_letters) == Counter(
        (row["dead_letter_reason"], row["subject"]) for row in given_up
    )
    for groups, part, name in ((found.keys, keyed, "ordering_key"), (found.types, written, "event_type")):
        counts = Counter(row[name] for row in part)
        left_out = max((n for _, n in counts.most_common()[20:]), default=0)
        assert {each.name: each.count for each in groups} == {k: n for k, n in counts.items() if n > left_out}
        sizes = {each.name: sum(size(row) for row in part if row[name] == each.name) for each in groups}
        assert {each.name: each.size for each in groups} == sizes
    stored: Counter[tuple[datetime, str]] = Counter()
    for row in gold:
        if row["minute"] + timedelta(minutes=1) > since and row["minute"] < until:
            at = begin(max(row["minute"], since), max(60, step))
            stored[at, row["context"] or "unknown"] += row["events"]
    assert {(each.at, each.name): each.count for each in found.stream_bins} == stored
    for way, ended, first, last in (
        ("outbox", published, "occurred_at", "published_at"),
        ("inbox", processed, "received_at", "processed_at"),
    ):
        figures = [each for each in found.latencies if each.way == way]
        assert {each.at for each in figures} == (
            {None} | {begin(row[last], step) for row in ended} if ended else set()
        )
        for each in figures:
            part = [row for row in ended if each.at in {None, begin(row[last], step)}]
            exact = sorted(max(0.0, (row[last] - row[first]).total_seconds()) for row in part)
            wanted = [exact[ceil(len(exact) * share / 100) - 1] for share in (50, 95, 99)]
            assert (each.count, each.longest) == (len(exact), exact[-1])
            assert [each.p50, each.p95, each.p99] == pytest.approx(wanted, rel=0.021, abs=1e-6)


def events(random: Random, now: datetime) -> tuple[list[Row], list[Row]]:
    """Return rows of the outbox and of the archive: of two contexts, in both places, archived twice."""
    outbox, archive = [], []
    for _ in range(400):
        row = event(random, now)
        copies = random.choice(("table", "table", "archive", "both", "twice", "again"))
        if copies in {"table", "both"} or row["state"] != "PUBLISHED":
            outbox.append(row)
        if copies != "table":
            published = row["published_at"] or row["created_at"] + timedelta(seconds=random.randrange(90))
            archive.append(row | {"published_at": published, "state": "PUBLISHED"})
        if copies in {"twice", "again"} and row["state"] == "PUBLISHED":
            later = {"published_at": row["published_at"] + timedelta(minutes=random.randrange(1, 3000))}
            (archive if copies == "twice" else outbox).append(row | later | {"publish_attempts": 7})
    contexts = (CONTEXT, CONTEXT, CONTEXT, "other")
    return outbox, [
        row | {"context": random.choice(contexts), "date": row["published_at"].date()} for row in archive
    ]


def event(random: Random, now: datetime) -> Row:
    state = random.choice(("PUBLISHED", "PUBLISHED", "PUBLISHED", "DEAD", "PENDING"))
    created = moment(random)
    if state == "PENDING":
        created = now - timedelta(seconds=random.choice((20, 300, 1800, 7200, 200_000)))
    delay = timedelta(seconds=random.choice((0, 0.0004, 2, 59.5, 3000, -30)) * random.uniform(0, 2))
    return {
        "id": str(UUID(int=random.getrandbits(128))),
        "event_type": f"order.t{min(random.randrange(40), random.randrange(40))}",
        "ordering_key": random.choice((None, f"key-{min(random.randrange(60), random.randrange(60))}")),
        "payload": json.dumps({"é": "ü" * random.randrange(40)}, ensure_ascii=False),
        "occurred_at": created - timedelta(seconds=random.choice((-3, 0, 1, 70))),
        "created_at": created,
        "published_at": created + delay if state == "PUBLISHED" else None,
        "publish_attempts": random.choice((0, 1, 1, 2, 19, 20, 25)),
        "state": state,
        "publish_error": random.choice((None, "MESSAGE_TOO_LARGE: 9", "MESSAGE_TOO_LARGE: 8", "x" * 300)),
    }


def message(random: Random, now: datetime) -> Row:
    outcome = random.choice(("processed", "processed", "dead", "open"))
    received = moment(random) if outcome != "open" else now - timedelta(seconds=random.choice((20, 7200)))
    ended = received + timedelta(seconds=random.choice((0, 0.5, 200)) * random.random())
    return {
        "message_id": str(UUID(int=random.getrandbits(128))),
        "subject": f"sea.event.t{random.randrange(3)}.v1",
        "received_at": received,
        "processed_at": ended if outcome == "processed" else None,
        "attempts": random.choice((0, 1, 1, 3, 30)),
        "dead_letter_reason": random.choice(("REJECTED", "CLOSED", "foreign")) if outcome == "dead" else None,
        "dead_letter_begun_at": received if outcome == "dead" else None,
        "dead_lettered_at": ended if outcome == "dead" else None,
    }


def minutes(random: Random) -> list[Row]:
    times = [BEGIN + timedelta(minutes=n) for n in (*range(-3, 8), *random.sample(range(8, 4320), 40))]
    return [
        {
            "minute": at,
            "context": context,
            "event_type": "a",
            "events": random.randrange(1, 99),
            "date": at.date(),
        }
        for at in times
        for context in (CONTEXT, "other", None)
    ]


def moment(random: Random) -> datetime:
    at = BEGIN + timedelta(minutes=random.choice((random.randrange(6), random.randrange(3 * 1440))))
    return at + timedelta(microseconds=random.choice((-1, 0, 1, 15_000_000, random.randrange(60_000_000))))


def begin(time: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(int(time.timestamp() // seconds) * seconds, UTC)


def size(row: Row) -> int:
    return len(row["payload"].encode())


def current(rows: Sequence[Row]) -> list[Row]:
    """Return one row of each event: the unpublished one, else the one published last."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row["published_at"] or NEVER, not row["archived"])):
        best[row["id"]] = row
    return list(best.values())


def named(groups: Sequence[Group]) -> Mapping[tuple[str, str], int]:
    return {(each.name, each.detail): each.count for each in groups}


async def fill(pool: asyncpg.Pool, outbox: Sequence[Row], inbox: Sequence[Row]) -> None:
    aggregate = {"aggregate_type": "order", "aggregate_id": "1"}
    written = [row | aggregate | {"payload": json.loads(row["payload"])} for row in outbox]
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for table, rows in (("outbox_events", written), ("inbox_messages", inbox)):
            names = ", ".join(rows[0])
            taken = f"SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)"
            await connection.execute(f"INSERT INTO {table} ({names}) {taken}", json.dumps(rows, default=str))


def write(spark: SparkSession, address: str, table: Table, rows: Sequence[Row]) -> None:
    lake = Lake(spark, address)
    lake.create(table)
    schema = lake.read(table.name).schema
    values = [tuple(row.get(name) for name in schema.names) for row in rows]
    spark.createDataFrame(values, schema).write.format("delta").mode("append").save(f"{address}/{table.name}")
