"""What a reconciliation found, in numbers, examples and words."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict

_SHARES = (0.5, 0.95, 0.99)
_ACCURACY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds that a hop took; percentiles are exact to a ten-thousandth of the rank."""

    events: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One hop.

    Attributes:
        name: from where to where.
        ids: how many were judged.
        verdicts: how many got each verdict; they add up to ``ids``.
        findings: how many have each finding, also where a worse one is the verdict.
        examples: some ids of each verdict but ``delivered``, in order.
        latency: from occurrence to stream, or from stream to effect; None: nothing passed the hop.
    """

    name: str
    ids: int
    verdicts: Mapping[Verdict, int]
    findings: Mapping[Verdict, int]
    examples: Mapping[Verdict, Sequence[str]]
    latency: Latency | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The part of a stream that was compared.

    Attributes:
        created: when the stream was created.
        first_seq: the first message that the stream held when it had been read.
        last_seq: the last one when the reading began; what came later is not judged.
        streamed: messages read from the stream.
        landed: messages read from the lake, because the stream does not hold them any more.
    """

    stream: str
    created: str
    first_seq: int
    last_seq: int
    first_time: datetime | None
    last_time: datetime | None
    streamed: int
    landed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """What was done about the ids that the stream lost.

    Attributes:
        lost: how many there are.
        replayed: how many were put back; 0 in a dry run, and where more than the cap are lost.
        capped: more rows than the cap are lost, so none was put back.
        archived: some ids of those whose rows are only in the archive: `pipeline replay --id` puts them back.
        archived_count: how many of them there are.
    """

    lost: int
    replayed: int
    capped: bool
    archived: Sequence[str]
    archived_count: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The whole result; ``rows`` tells how many were read of each table, stream and lake table."""

    since: datetime | None
    until: datetime | None
    compared: Sequence[Compared]
    rows: Mapping[str, int]
    hops: Sequence[Hop]
    notes: Sequence[str]
    requeued: Requeued | None

    def found(self, verdicts: Collection[Verdict]) -> int:
        """Count findings of these kinds, over all hops."""
        return sum(hop.findings.get(verdict, 0) for hop in self.hops for verdict in verdicts)


def summary(name: str, judged: DataFrame, *, examples: int) -> Hop:
    """Count what a hop's ids got.

    Args:
        name: of the hop.
        judged: ``id``, ``findings`` and ``seconds``; read several times.
        examples: how many ids to name of each verdict.
    """
    shares = F.percentile_approx("seconds", list(_SHARES), _ACCURACY).alias("shares")
    figures = (
        F.count("*").alias("ids"),
        F.count("seconds").alias("events"),
        F.max("seconds").alias("longest"),
    )
    rows = judged.rollup("findings").agg(*figures, shares).collect()
    counted = [(row.findings, row.ids) for row in rows if row.findings is not None]
    verdicts = {each: sum(n for found, n in counted if found[0] == each) for each in Verdict}
    findings = {each: sum(n for found, n in counted if each in found) for each in Verdict}
    ids = sum(n for _, n in counted)
    to_name = examples if verdicts[Verdict.DELIVERED] < ids else 0
    return Hop(
        name=name,
        ids=ids,
        verdicts={each: n for each, n in verdicts.items() if n},
        findings={each: n for each, n in findings.items() if n},
        examples=_examples(judged, to_name) if to_name else {},
        latency=next((_latency(row) for row in rows if row.findings is None and row.events), None),
    )


def troubled(judged: DataFrame) -> DataFrame:
    """Return the ids that are not simply delivered, with their verdicts."""
    bad = judged.where(F.col("findings")[0] != Verdict.DELIVERED.value)
    return bad.select("id", F.col("findings")[0].alias("verdict"), "findings", "seconds")


def _examples(judged: DataFrame, number: int) -> dict[Verdict, list[str]]:
    of_verdict = Window.partitionBy("verdict").orderBy("id")
    ranked = troubled(judged).withColumn("rank", F.row_number().over(of_verdict))
    rows = ranked.where(F.col("rank") <= number).orderBy("verdict", "rank").collect()
    found: dict[Verdict, list[str]] = {}
    for row in rows:
        found.setdefault(Verdict(row.verdict), []).append(row.id)
    return found


def _latency(row: Row) -> Latency:
    p50, p95, p99 = row.shares
    return Latency(events=row.events, p50=p50, p95=p95, p99=p99, longest=row.longest)
