"""Report: the figures of a period, small enough to print, without payloads or IDs.

All figures are from one snapshot of the tables. With a lake, archived events count too. An event with several
rows in table and archive counts once: by its unpublished row, else by the one published last. Messages that
`prune` deleted from the inbox are not counted.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.pipeline.jetstream.source import JetStreamSource
from sea_mq_worker.pipeline.lake import Lake
from sea_mq_worker.pipeline.postgres import Snapshot, snapshot
from sea_mq_worker.pipeline.session import configured
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings, config_file

Way: TypeAlias = Literal["outbox", "inbox"]

ATTEMPTS_MAX = 20
"""Events with more attempts count as having this number."""

_AGES = ("under 1 minute", "1 to 10 minutes", "10 to 60 minutes", "1 to 24 hours", "over 1 day")
_LARGEST, _GROUPS_MAX, _TEXT_MAX, _BINS_MAX = 20, 200, 200, 240
_STEPS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400)
_WAYS: tuple[tuple[Way, str], ...] = (("outbox", "published"), ("inbox", "processed"))
_EVENT = ("event_type", "ordering_key", "occurred_at", "created_at", "published_at", "publish_attempts")
_MESSAGE = ("received_at", "processed_at", "dead_lettered_at", "attempts")
_HEADER = "coalesce(try_element_at(filter(headers, h -> h.key = '{}'), -1).value, 'unknown') AS {}"
_CLOCK_STEP_MAX = timedelta(hours=1)
"""Cap on the time by which an event may be published before its creation, after a clock was set back."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Counts of one bin; an event counts in each field by the time that the field names."""

    at: datetime
    written: int = 0
    published: int = 0
    received: int = 0
    processed: int = 0
    outbox_retried: int = 0
    inbox_retried: int = 0


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Seconds from occurred to published, or received to processed; ``at`` None: whole period."""

    way: Way
    at: datetime | None
    count: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Group:
    """Events with a name and a detail in common; of the period, or of the bin that begins at ``at``."""

    name: str
    detail: str
    count: int
    size: int = 0
    at: datetime | None = None
    latest: datetime | None = None
    oldest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of the period."""

    written: int = 0
    written_bytes: int = 0
    published: int = 0
    outbox_retried: int = 0
    dead: int = 0
    received: int = 0
    processed: int = 0
    inbox_retried: int = 0
    dead_lettered: int = 0
    """Messages of the inbox that were dead-lettered."""
    dead_letters: int = 0
    archived: int = 0
    """Events that were written in the period and are only in the archive."""
    keys: int = 0
    """Distinct ordering keys."""
    types: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures.

    Attributes:
        context: the bounded context of the events.
        at: time of the snapshot, by PostgreSQL's clock.
        since: the period's begin.
        until: the period's end, not included.
        bin_seconds: length of a bin.
        lake: whether the archive was read.
        dead_letter_source: the stream that dead letters were read from; None: the inbox table.
        attempts: by way and number of attempts.
        dead: DEAD events written in the period, by the beginning of their last error and by type.
        dead_letters: by reason and original subject.
        dead_letter_bins: by reason.
        keys: the largest ordering keys of events written in the period, with the size of the payloads.
        types: the largest event types, likewise.
        backlog: rows at the snapshot that are neither finished nor dead, by way and state, and by age.
        stream_bins: landed messages, by context and the time when the stream stored them.
    """

    context: str
    at: datetime
    since: datetime
    until: datetime
    bin_seconds: int
    lake: bool = False
    dead_letter_source: str | None = None
    totals: Totals
    bins: Sequence[Bin]
    latencies: Sequence[LatencyFigures] = ()
    attempts: Sequence[Group] = ()
    dead: Sequence[Group] = ()
    dead_letters: Sequence[Group] = ()
    dead_letter_bins: Sequence[Group] = ()
    keys: Sequence[Group] = ()
    types: Sequence[Group] = ()
    backlog: Sequence[Group] = ()
    stream_bins: Sequence[Group] = ()

    def latency(self, way: Way) -> LatencyFigures | None:
        """Return the percentiles of the whole period; None: nothing was published or processed in it."""
        return next((each for each in self.latencies if each.way == way and each.at is None), None)


def report(
    spark: SparkSession,
    settings: Settings,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    lake: str | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Gather the figures of a period.

    Args:
        spark: the session.
        settings: with a NATS server, dead letters are read from their stream; otherwise from the inbox.
        since: begin of the period; by default the time of the first event or message.
        until: end of the period, not included; by default now.
        lake: where archived events are; None: count only the events in the table.
        on_progress: called with a text at each step.

    Raises:
        WorkerError: PostgreSQL or the lake cannot be read.
    """
    with configured(spark), snapshot(settings) as held:
        tables = Lake(spark, lake) if lake else None
        if tables:
            tables.require(("archive", "gold"))
        queries = load_queries("pipeline_report")
        until = until or held.at
        archive = None
        if tables and tables.exists("archive"):
            archive = tables.read("archive").where(F.col("context") == settings.context)
        first = since or _first(held, archive, queries["first"])
        since = (first if first and first < until else until - timedelta(hours=1)).astimezone(UTC)
        until = until.astimezone(UTC)
        step = _step((until - since).total_seconds())
        source = settings.dlq_stream if settings.nats_url.get_secret_value() else None
        on_progress(
            f"counting {since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S} UTC, as of {held.at:%H:%M:%S}"
        )
        # Delta 4.4 loses the named parameters of a statement on Spark 4.2, so literals take their place.
        frame = spark.sql(
            files(__package__).joinpath("report.sql").read_text(encoding="utf-8"),
            since=str(since),
            until=str(until),
            step=step,
            attempts_max=ATTEMPTS_MAX,
            groups_max=_GROUPS_MAX,
            reasons=" ".join([*map(str, Reason), "CLOSED"]),
            events=_events(spark, held, archive, since, until),
            messages=_messages(spark, held, since, until),
            letters=_letters(spark, held, source, since, until),
            minutes=_minutes(spark, tables, since, until),
        )
        return Report(
            context=settings.context,
            at=held.at,
            since=since,
            until=until,
            bin_seconds=step,
            lake=bool(lake),
            dead_letter_source=source,
            backlog=[
                Group(f"{way} {state}", _AGES[age], count, oldest_seconds=oldest)
                for way, state, age, count, oldest in held.rows(queries["backlog"])
            ],
            **_figures(frame.toArrow().to_pylist(), since, until, step),
        )


def _first(held: Snapshot, archive: DataFrame | None, query: str) -> datetime | None:
    """Return the time of the first event or message, whole seconds; None: there is none."""
    times = [held.rows(query)[0]["at"]]
    if archive is not None:
        at = F.date_trunc("second", F.min("created_at")).alias("at")
        times += archive.select(at).toArrow()["at"].to_pylist()
    return min(filter(None, times), default=None)


def _step(seconds: float) -> int:
    """Return the shortest common bin length that gives at most 240 bins."""
    fitting = (step for step in _STEPS if seconds / step <= _BINS_MAX)
    return next(fitting, 86_400 * (1 + int(seconds / 86_400 / _BINS_MAX)))


def _events(
    spark: SparkSession, held: Snapshot, archive: DataFrame | None, since: datetime, until: datetime
) -> DataFrame:
    """Return the events created or published in the period, each once; ``archived``: it is the lake's row."""
    since, until = since - _CLOCK_STEP_MAX, until + _CLOCK_STEP_MAX
    size = "octet_length(payload::text) AS payload_bytes"
    rows = held.read(
        spark,
        "outbox_events",
        ("id::text AS id", *_EVENT, size, "state", "publish_error"),
        f"created_at < '{until}' AND coalesce(published_at, 'infinity') >= '{since}'",
    ).withColumn("archived", F.lit(False))
    if archive is None:
        return rows
    archived = (
        archive.where(
            (F.col("date") >= since.date()) & (F.col("published_at") >= since) & (F.col("created_at") < until)
        )
        .selectExpr("id", *_EVENT, "octet_length(payload) AS payload_bytes")
        .withColumns({"state": F.lit("PUBLISHED"), "archived": F.lit(True)})
    )
    current = Window.partitionBy("id").orderBy(F.desc_nulls_first("published_at"), "archived")
    both = rows.unionByName(archived, allowMissingColumns=True).withColumn("n", F.row_number().over(current))
    return both.where("n = 1").drop("n")


def _messages(spark: SparkSession, held: Snapshot, since: datetime, until: datetime) -> DataFrame:
    settled = "coalesce(processed_at, dead_lettered_at, 'infinity')"
    where = f"received_at < '{until}' AND {settled} >= '{since}'"
    return held.read(spark, "inbox_messages", _MESSAGE, where)


def _letters(
    spark: SparkSession, held: Snapshot, stream: str | None, since: datetime, until: datetime
) -> DataFrame:
    """Return dead letters of a stream, or of the inbox: reason, subject, time."""
    if not stream:
        columns = ("dead_letter_reason AS reason", "subject", "dead_lettered_at AS time")
        where = f"dead_lettered_at >= '{since}' AND dead_lettered_at < '{until}'"
        return held.read(spark, "inbox_messages", columns, where)
    spark.dataSource.register(JetStreamSource)
    config = {"config": path} if (path := config_file()) else {}
    rows = spark.read.format("jetstream").options(stream=stream, **config).load()
    reason, subject = (
        _HEADER.format("Dlq-Reason", "reason"),
        _HEADER.format("Dlq-Original-Subject", "subject"),
    )
    return rows.selectExpr(reason, subject, "time")


def _minutes(spark: SparkSession, lake: Lake | None, since: datetime, until: datetime) -> DataFrame:
    """Return the minutes of gold that can overlap the period."""
    if not lake or not lake.exists("gold"):
        return spark.createDataFrame([], "context string, minute timestamp, events bigint")
    since -= timedelta(minutes=1)
    rows = lake.read("gold").where((F.col("date") >= since.date()) & (F.col("minute") < until))
    return rows.select("context", "minute", "events")


def _figures(
    rows: Sequence[Mapping[str, Any]], since: datetime, until: datetime, step: int
) -> dict[str, Any]:
    """Return the fields of a Report that report.sql counts."""
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    attempts: Counter[tuple[Way, int]] = Counter()
    for row in rows:
        kinds[row["kind"]].append(row)
        counts[row["at"]][row["kind"]] += row["count"]
    for way, kind in _WAYS:
        for row in kinds[kind]:
            attempts[way, int(row["name"])] += row["count"]
            counts[row["at"]][f"{way}_retried"] += row["count"] * (int(row["name"]) > 1)
    names = Bin.__slots__[1:]
    first = int(since.timestamp()) // step * step
    begins = [datetime.fromtimestamp(at, UTC) for at in range(first, -int(-until.timestamp() // 1), step)]
    bins = [Bin(at, *(counts[at][name] for name in names)) for at in begins]
    groups = {name: [*map(_group, kinds[name])] for name in Report.__slots__ if name in kinds}
    sums = {kind: found[0]["total"] for kind, found in kinds.items() if found and kind in Totals.__slots__}
    sums |= {kind: kinds[kind][0]["distinct"] for kind in ("keys", "types") if kinds[kind]}
    sums |= {name: sum(getattr(each, name) for each in bins) for name in ("outbox_retried", "inbox_retried")}
    return {
        **groups,
        "keys": _standing_out(groups.get("keys", [])),
        "types": _standing_out(groups.get("types", [])),
        "bins": bins,
        "latencies": [each for way, kind in _WAYS for each in _latencies(way, kinds[kind])],
        "attempts": [
            Group(way, str(number), count)
            for (way, number), count in sorted(
                attempts.items(), key=lambda one: (one[0][0] != "outbox", one[0])
            )
        ],
        "totals": Totals(**sums, written_bytes=sum(row["size"] for row in kinds["written"])),
    }


def _group(row: Mapping[str, Any]) -> Group:
    name, detail = (row["name"] or "")[:_TEXT_MAX], (row["detail"] or "")[:_TEXT_MAX]
    return Group(name, detail, row["count"], row["size"], row["at"], row["latest"])


def _standing_out(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the largest groups, without those that have as many events as one that is left out."""
    omitted = max((each.count for each in groups[_LARGEST:]), default=0)
    return [each for each in groups[:_LARGEST] if each.count > omitted]


def _latencies(way: Way, rows: Sequence[Mapping[str, Any]]) -> Iterator[LatencyFigures]:
    """Yield percentiles: the longest duration of the class in which a share of the events is reached."""
    classes: dict[datetime | None, list[tuple[float, int]]] = defaultdict(list)
    for row in rows:
        for at in (None, row["at"]):
            classes[at].append((row["seconds"], row["count"]))
    for at, found in classes.items():
        found.sort()
        reached = list(accumulate(count for _, count in found))
        places = [bisect_left(reached, reached[-1] * share / 100) for share in (50, 95, 99)]
        yield LatencyFigures(way, at, reached[-1], *(found[place][0] for place in (*places, -1)))
