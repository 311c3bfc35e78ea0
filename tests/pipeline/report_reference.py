"""Random rows for a report, and its figures counted from them one by one in plain Python."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from math import ceil
from random import Random
from typing import Any
from uuid import UUID

from sea_mq_worker.pipeline.jobs.report.model import AGES

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
CONTEXT = "sea"
_EDGES = [timedelta(microseconds=n) for n in (-1, 0, 1)]
_ERRORS = (None, "MESSAGE_TOO_LARGE: 9", "MESSAGE_TOO_LARGE: 8", "x" * 300, "REFUSED")
_SUBJECTS = [f"sea.event.t{n}.v1" for n in range(3)]
_AGES = ((60, AGES[0]), (600, AGES[1]), (3600, AGES[2]), (86_400, AGES[3]))

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """Rows of all tables."""

    outbox: Sequence[Row]
    archive: Sequence[Row]
    inbox: Sequence[Row]
    gold: Sequence[Row]


def world(seed: int, now: datetime) -> World:
    """Return rows of several contexts, in both places, archived twice, and times at the edges of minutes."""
    random = Random(seed)
    outbox, archive = [], []
    for n in range(500):
        row = _event(random, n, now)
        copies = random.choice(("table", "table", "archive", "both", "twice", "again"))
        if row["state"] != "PUBLISHED":
            outbox.append(row)
            if copies == "again":
                earlier = row["created_at"] + timedelta(seconds=random.randrange(90))
                archive.append(row | {"published_at": earlier, "state": "PUBLISHED"})
            continue
        if copies in {"table", "both"}:
            outbox.append(row)
        if copies != "table":
            archive.append(row)
        if copies in {"twice", "again"}:
            later = row | {"published_at": row["published_at"] + timedelta(minutes=random.randrange(1, 3000))}
            (archive if copies == "twice" else outbox).append(later | {"publish_attempts": 7})
    contexts = (CONTEXT, CONTEXT, CONTEXT, "other")
    archive = [
        row | {"context": random.choice(contexts), "date": row["published_at"].date()} for row in archive
    ]
    return World(outbox, archive, [_message(random, n, now) for n in range(300)], _minutes(random))


def _time(random: Random) -> datetime:
    minutes = random.choice((random.randrange(6), random.randrange(3 * 1440)))
    jitter = timedelta(seconds=random.uniform(0, 60))
    return BEGIN + timedelta(minutes=minutes) + random.choice((*_EDGES, jitter, timedelta(seconds=15)))


def _event(random: Random, n: int, now: datetime) -> Row:
    state = random.choice(("PUBLISHED", "PUBLISHED", "PUBLISHED", "PUBLISHED", "DEAD", "PENDING"))
    created = _time(random)
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
        "publish_error": random.choice(_ERRORS),
    }


def _message(random: Random, n: int, now: datetime) -> Row:
    outcome = random.choice(("processed", "processed", "dead", "open"))
    received = _time(random)
    if outcome == "open":
        received = now - timedelta(seconds=random.choice((20, 300, 1800, 7200, 200_000)))
    ended = received + timedelta(seconds=random.choice((0, 0.5, 200)) * random.random())
    begun = outcome == "dead" or random.random() < 0.1
    return {
        "message_id": str(UUID(int=random.getrandbits(128))),
        "subject": random.choice(_SUBJECTS),
        "received_at": received,
        "processed_at": ended if outcome == "processed" else None,
        "attempts": random.choice((0, 1, 1, 3, 30)),
        "dead_letter_reason": random.choice(("REJECTED", "CLOSED", "foreign")) if begun else None,
        "dead_letter_begun_at": received if begun else None,
        "dead_lettered_at": ended if outcome == "dead" else None,
    }


def _minutes(random: Random) -> list[Row]:
    """Return gold's minutes, each once for its context and type."""
    keys = {
        (BEGIN + timedelta(minutes=random.choice((random.randrange(-3, 8), random.randrange(4320)))), *names)
        for names in [*product((CONTEXT, "other", None), "ab")] * 30
    }
    return [
        {"minute": at, "context": context, "event_type": kind, "events": random.randrange(1, 99)}
        | {"date": at.date()}
        for at, context, kind in sorted(keys, key=str)
    ]


def figures(world: World, since: datetime, until: datetime, at: datetime, step: int) -> Row:
    """Count the fields of a report of the period that depend on rows."""

    def within(rows: Iterable[Row], name: str) -> list[Row]:
        return [row for row in rows if row[name] is not None and since <= row[name] < until]

    events = _current(world)
    written, published = within(events, "created_at"), within(events, "published_at")
    received, processed = within(world.inbox, "received_at"), within(world.inbox, "processed_at")
    given_up = within(world.inbox, "dead_lettered_at")
    dead = [row for row in written if row["state"] == "DEAD"]
    counted = {
        "written": (written, "created_at"), "published": (published, "published_at"),
        "received": (received, "received_at"), "processed": (processed, "processed_at"),
        "outbox_retried": ([row for row in published if row["publish_attempts"] > 1], "published_at"),
        "inbox_retried": ([row for row in processed if row["attempts"] > 1], "processed_at"),
    }  # fmt: skip
    by_bin = {
        name: Counter(_begin(row[time], step) for row in rows) for name, (rows, time) in counted.items()
    }
    bins, first = [], _begin(since, step)
    while first < until:
        bins.append({"at": first, **{name: count[first] for name, count in by_bin.items()}})
        first += timedelta(seconds=step)
    minute = timedelta(minutes=1)
    stored = [row for row in world.gold if row["minute"] + minute > since and row["minute"] < until]
    return {
        "totals": {
            **{name: len(rows) for name, (rows, _) in counted.items()},
            "written_bytes": sum(_size(row) for row in written), "dead": len(dead),
            "dead_lettered": len(given_up), "archived": sum(row["archived"] for row in written),
        },
        "bins": bins,
        "attempts": [
            {"way": way, "attempts": number, "count": count}
            for way, rows, name in (
                ("outbox", published, "publish_attempts"),
                ("inbox", processed, "attempts"),
            )
            for number, count in sorted(Counter(min(20, row[name]) for row in rows).items())
        ],
        "dead": _ordered(
            ((row["publish_error"] or "no error recorded").split(":")[0][:80], row["event_type"])
            for row in dead
        ),
        **_letters(given_up, step),
        "keys": _shares([row for row in written if row["ordering_key"]], "ordering_key"),
        "types": _shares(written, "event_type"),
        "backlog": _backlog(world, at),
        "stream_bins": _by_time(
            (_begin(row["minute"], max(60, step)), row["context"] or "unknown", row["events"])
            for row in stored
        ),
    }  # fmt: skip


def durations(
    world: World, since: datetime, until: datetime, step: int
) -> dict[tuple[str, datetime | None], list[float]]:
    """Return the sorted durations of the whole period (None) and of each bin, by way."""
    found: dict[tuple[str, datetime | None], list[float]] = {}
    for way, rows, first, last in (
        ("outbox", _current(world), "occurred_at", "published_at"),
        ("inbox", world.inbox, "received_at", "processed_at"),
    ):
        for row in rows:
            if row[last] is not None and since <= row[last] < until:
                seconds = max(0.0, (row[last] - row[first]).total_seconds())
                for at in (None, _begin(row[last], step)):
                    found.setdefault((way, at), []).append(seconds)
    first = datetime.min.replace(tzinfo=UTC)
    ordered = sorted(found, key=lambda key: (key[0] != "outbox", key[1] or first))
    return {key: sorted(found[key]) for key in ordered}


def percentile(ordered: Sequence[float], share: int) -> float:
    """Return the smallest value that a share of the values, in percent, does not exceed."""
    return ordered[ceil(len(ordered) * share / 100) - 1]


def _begin(time: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(int(time.timestamp() // seconds) * seconds, UTC)


def _letters(given_up: Sequence[Row], step: int) -> Row:
    found = [(row["dead_letter_reason"], row["subject"], row["dead_lettered_at"]) for row in given_up]
    return {
        "dead_letters": _ordered((reason, subject) for reason, subject, _ in found),
        "latest": {
            (reason, subject): time for reason, subject, time in sorted(found, key=lambda letter: letter[2])
        },
        "dead_letter_count": len(found),
        "dead_letter_bins": _by_time(
            (_begin(time, step), reason if reason != "foreign" else "others", 1) for reason, _, time in found
        ),
    }


def _current(world: World) -> list[Row]:
    """Return one row of each event: the unpublished one, else the one published last."""
    own = [
        row | {"archived": True, "state": "PUBLISHED"} for row in world.archive if row["context"] == CONTEXT
    ]
    rows = [*own, *(row | {"archived": False} for row in world.outbox)]
    never = datetime.max.replace(tzinfo=UTC)
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row["published_at"] or never, not row["archived"])):
        best[row["id"]] = row
    return list(best.values())


def _size(row: Row) -> int:
    return len(row["payload"].encode())


def _ordered(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str, int]]:
    return sorted(
        ((*pair, count) for pair, count in Counter(pairs).items()), key=lambda one: (-one[2], *one[:2])
    )


def _by_time(found: Iterable[tuple[datetime, str, int]]) -> list[tuple[datetime, str, int]]:
    counts: Counter[tuple[datetime, str]] = Counter()
    for at, name, count in found:
        counts[at, name] += count
    return [(at, name, count) for (at, name), count in sorted(counts.items())]


def _shares(rows: Sequence[Row], column: str) -> Row:
    counts, sizes = Counter(row[column] for row in rows), Counter[str]()
    for row in rows:
        sizes[row[column]] += _size(row)
    ordered = sorted(counts, key=lambda name: (-counts[name], -sizes[name], name))
    omitted = max((counts[name] for name in ordered[20:]), default=0)
    largest = [name for name in ordered[:20] if counts[name] > omitted]
    return {
        "largest": [{"name": name, "count": counts[name], "size": sizes[name]} for name in largest],
        "distinct": len(counts),
    }


def _backlog(world: World, at: datetime) -> list[Row]:
    waiting = [
        ("outbox", row["state"], row["created_at"]) for row in world.outbox if row["state"] == "PENDING"
    ]
    for row in world.inbox:
        if row["processed_at"] is None and row["dead_lettered_at"] is None:
            retried = "RETRIED" if row["attempts"] > 1 else "RECEIVED"
            waiting.append(
                ("inbox", "DEAD-LETTERING" if row["dead_letter_begun_at"] else retried, row["received_at"])
            )
    groups: dict[tuple[str, str, str], list[float]] = {}
    for way, state, begin in waiting:
        seconds = max(0.0, (at - begin).total_seconds() // 1)
        age = next((age for limit, age in _AGES if seconds < limit), AGES[-1])
        groups.setdefault((way, state, age), []).append(seconds)
    return [
        {"way": way, "state": state, "age": age, "count": len(ages), "oldest_seconds": max(ages)}
        for (way, state, age), ages in sorted(
            groups.items(), key=lambda one: (one[0][0] != "outbox", one[0][1], AGES.index(one[0][2]))
        )
    ]
