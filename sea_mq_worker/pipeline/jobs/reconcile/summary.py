"""Count the verdicts and findings of all hops by one aggregate."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.result import Hop, HopLatency
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict

_SHARES = (0.5, 0.95, 0.99)
_ACCURACY = 10_000


def summaries(judged: DataFrame, names: Sequence[str], *, examples: int) -> tuple[list[Hop], int]:
    """Return the summary of each hop, and the number of rows that are in the table.

    Args:
        judged: ``id``, ``in_table``, ``hop``, ``findings`` and ``seconds``; read twice at most.
        names: names of the hops, the one from the outbox first.
        examples: number of IDs to return for each verdict.
    """
    shares = F.percentile_approx("seconds", list(_SHARES), _ACCURACY).alias("shares")
    figures = (
        F.count("*").alias("ids"),
        F.count_if("in_table").alias("in_table"),
        F.count("seconds").alias("events"),
        F.max("seconds").alias("longest"),
    )
    sets = judged.groupingSets([["hop"], ["hop", "findings"]], "hop", "findings")
    rows = sets.agg(*figures, shares).collect()
    is_bad = any(row.findings and row.findings != [Verdict.DELIVERED] for row in rows)
    named = _examples(judged, examples) if examples and is_bad else {}
    hops = [_hop(name, [row for row in rows if row.hop == name], named.get(name, {})) for name in names]
    return hops, sum(row.in_table for row in rows if row.hop == names[0] and row.findings is None)


def troubled(judged: DataFrame) -> DataFrame:
    """Return the IDs with another verdict than delivered."""
    verdict = F.col("findings")[0]
    bad = judged.where(verdict != Verdict.DELIVERED.value)
    return bad.select("hop", "id", verdict.alias("verdict"), "findings", "seconds")


def _hop(name: str, rows: Sequence[Row], named: dict[Verdict, list[str]]) -> Hop:
    counted = [(row.findings, row.ids) for row in rows if row.findings is not None]
    verdicts = {each: sum(n for found, n in counted if found[0] == each) for each in Verdict}
    findings = {each: sum(n for found, n in counted if each in found) for each in Verdict}
    return Hop(
        name=name,
        ids=sum(n for _, n in counted),
        verdicts={each: n for each, n in verdicts.items() if n},
        findings={each: n for each, n in findings.items() if n},
        examples=named,
        latency=next((_latency(row) for row in rows if row.findings is None and row.events), None),
    )


def _examples(judged: DataFrame, number: int) -> dict[str, dict[Verdict, list[str]]]:
    of_verdict = Window.partitionBy("hop", "verdict").orderBy("id")
    ranked = troubled(judged).withColumn("rank", F.row_number().over(of_verdict))
    found: dict[str, dict[Verdict, list[str]]] = {}
    for row in ranked.where(F.col("rank") <= number).orderBy("hop", "verdict", "rank").collect():
        found.setdefault(row.hop, {}).setdefault(Verdict(row.verdict), []).append(row.id)
    return found


def _latency(row: Row) -> HopLatency:
    p50, p95, p99 = row.shares
    return HopLatency(events=row.events, p50=p50, p95=p95, p99=p99, longest=row.longest)
