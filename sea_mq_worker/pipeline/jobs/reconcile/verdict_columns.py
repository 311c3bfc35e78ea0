"""Verdicts as Spark columns."""

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict


def findings(state: Column, further: Mapping[Verdict, Column]) -> Column:
    """Return an array of all findings, worst first; ``delivered`` only if there is no other finding.

    Args:
        state: one of the mutually exclusive verdicts.
        further: conditions of the additional findings; null counts as false.
    """
    held = [
        F.when(further.get(verdict, state == verdict.value), verdict.value)
        for verdict in Verdict
        if verdict is not Verdict.DELIVERED
    ]
    found = F.array_compact(F.array(*held))
    return F.when(F.size(found) > 0, found).otherwise(F.array(F.lit(Verdict.DELIVERED.value)))


def case(*rules: tuple[Column, Verdict], otherwise: Verdict) -> Column:
    """Return the verdict of the first rule whose condition holds; null counts as false."""
    chosen: Column = F.lit(otherwise.value)
    for condition, verdict in reversed(rules):
        chosen = F.when(condition, verdict.value).otherwise(chosen)
    return chosen
