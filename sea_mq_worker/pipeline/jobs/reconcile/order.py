"""Which events of an ordering key are out of order: the fewest without which the rest is in order.

Compared with its neighbours alone, one event that came late would accuse all that overtook it, and one that
came early all that it overtook. So the longest run of events is sought whose places in the stream rise with
their insert order, and those outside it are named: exactly the ones that moved. Where two runs are equally
long, as after a swap of two neighbours, the event that was overtaken is named, not the one that overtook it.
"""

from bisect import bisect_left
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def order_conflicts(places: DataFrame) -> DataFrame:
    """Return the events that stand in the wrong order to at least one other of their key.

    All the others are in order with everything, so that only these need to be looked at together.

    Args:
        places: ``ordering_key``, ``seq`` (insert order), ``place`` (in the stream), and what is to be kept.
    """
    key = Window.partitionBy("ordering_key")
    before = key.orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    after = key.orderBy(F.desc("seq")).rowsBetween(Window.unboundedPreceding, -1)
    seen = places.withColumn("highest", F.max("place").over(before))
    seen = seen.withColumn("lowest", F.min("place").over(after))
    return seen.where("highest > place OR lowest < place").drop("highest", "lowest")


def out_of_order(places: DataFrame) -> DataFrame:
    """Return the ``id`` of each event that is out of order; those of one key must fit in memory."""
    return (
        places.select("ordering_key", "id", "seq", "place")
        .groupBy("ordering_key")
        .applyInArrow(_moved_of_key, "id string")
    )


def outside_longest_run(places: Sequence[int]) -> list[int]:
    """Return the indexes that a longest rising run leaves out."""
    ends: list[int] = []
    lowest: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        length = bisect_left(lowest, place)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [index]
        lowest[length : length + 1] = [place]
    run = set()
    index = ends[-1] if ends else -1
    while index >= 0:
        run.add(index)
        index = before[index]
    return [index for index in range(len(places)) if index not in run]


def _moved_of_key(events: pa.Table) -> pa.Table:
    in_order = events.sort_by("seq")
    outside = outside_longest_run(in_order.column("place").to_pylist())
    return in_order.select(["id"]).take(pa.array(outside, pa.int64()))
