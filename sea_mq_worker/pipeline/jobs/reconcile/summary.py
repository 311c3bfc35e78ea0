"""Summarize the findings of all hops."""

from collections.abc import Mapping, Sequence

import numpy as np
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.jobs.reconcile.result import Hop, HopLatency, Verdict, findings_of

_SHARES = (0.5, 0.95, 0.99)
_EXAMPLES = 20


def summaries(names: Sequence[str], counts: Sequence[Row], troubled: DataFrame) -> list[Hop]:
    """Return the summary of each hop from the rows of ``FOUND`` that count, and rows of ``TROUBLE``."""
    found = troubled.groupBy("hop", "findings").count().collect()
    chosen = _examples(troubled) if found else {}
    return [
        _hop(
            name,
            [row for row in counts if row.hop == number],
            {row.findings: row["count"] for row in found if row.hop == number},
            {each: chosen[number, each.bit] for each in Verdict if (number, each.bit) in chosen},
        )
        for number, name in enumerate(names)
    ]


def named(troubled: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the IDs with another verdict than delivered, with the texts of hop, verdict and findings."""
    flags = (F.when(F.col("findings").bitwiseAND(each.bit) != 0, each.value) for each in Verdict)
    texts = troubled.withColumn("findings", F.array_compact(F.array(*flags)))
    hop = F.array(*map(F.lit, names))[F.col("hop")]
    return texts.select(hop.alias("hop"), "id", F.col("findings")[0].alias("verdict"), "findings", "seconds")


def _hop(
    name: str, counts: Sequence[Row], troubled: Mapping[int, int], examples: Mapping[Verdict, Sequence[str]]
) -> Hop:
    ids = sum(row.rows for row in counts if row.counted == "ids")
    sets = {**troubled, 0: ids - sum(troubled.values())}
    counted = [(findings_of(bits), number) for bits, number in sets.items() if number]
    verdicts = {each: sum(number for found, number in counted if found[0] == each) for each in Verdict}
    findings = {each: sum(number for found, number in counted if each in found) for each in Verdict}
    return Hop(
        name=name,
        ids=ids,
        verdicts={each: number for each, number in verdicts.items() if number},
        findings={each: number for each, number in findings.items() if number},
        examples=examples,
        latency=_latency(counts),
    )


def _examples(troubled: DataFrame) -> dict[tuple[int, int], list[str]]:
    """Return IDs by hop and bit of the verdict."""
    rows = troubled.withColumn("verdict", F.expr("findings & -findings"))  # the lowest bit
    rank = F.row_number().over(Window.partitionBy("hop", "verdict").orderBy("id"))
    first = rows.withColumn("rank", rank).where(F.col("rank") <= _EXAMPLES)
    groups = first.groupBy("hop", "verdict").agg(F.array_sort(F.collect_list("id")).alias("ids"))
    return {(row.hop, row.verdict): row.ids for row in groups.collect()}


def _latency(counts: Sequence[Row]) -> HopLatency | None:
    values = sorted((row.seconds, row.rows) for row in counts if row.counted == "latency")
    if not values:
        return None
    ranks = np.cumsum([rows for _, rows in values])
    places = np.searchsorted(ranks, np.array(_SHARES) * ranks[-1])
    p50, p95, p99 = (values[place][0] for place in places)
    return HopLatency(events=int(ranks[-1]), p50=p50, p95=p95, p99=p99, longest=values[-1][0])
