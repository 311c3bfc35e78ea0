"""Find the events of an ordering key that are out of order: the fewest whose removal restores the order.

A comparison of neighbours would report every event that overtook one late event. Therefore the longest
subsequence of events is determined whose stream positions increase with their insert order. The events
outside of it are reported. If two subsequences are equally long, as after a swap of two neighbours, the
overtaken event is reported.
"""

from bisect import bisect_left
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def order_conflicts(positions: DataFrame) -> DataFrame:
    """Return the events that are in the wrong order relative to at least one other event of their key.

    All other events are in order relative to every event, so only the returned ones need a joint comparison.

    Args:
        positions: ``ordering_key``, ``seq`` (insert order), ``position`` (position in the stream), other
            columns to keep.
    """
    key = Window.partitionBy("ordering_key")
    before = key.orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    after = key.orderBy(F.desc("seq")).rowsBetween(Window.unboundedPreceding, -1)
    seen = positions.withColumn("highest", F.max("position").over(before))
    seen = seen.withColumn("lowest", F.min("position").over(after))
    return seen.where("highest > position OR lowest < position").drop("highest", "lowest")


def out_of_order(positions: DataFrame) -> DataFrame:
    """Return the ``id`` of each event that is out of order; the events of one key must fit in memory."""
    chosen = positions.select("ordering_key", "id", "seq", "position")
    return chosen.groupBy("ordering_key").applyInArrow(_moved_of_key, "id string")


def outside_longest_run(positions: Sequence[int]) -> list[int]:
    """Return the indexes outside a longest increasing subsequence."""
    lowest: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, position in enumerate(positions):
        length = bisect_left(lowest, position)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [index]
        lowest[length : length + 1] = [position]
    run = set()
    index = ends[-1] if ends else -1
    while index >= 0:
        run.add(index)
        index = before[index]
    return [index for index in range(len(positions)) if index not in run]


def _moved_of_key(events: pa.Table) -> pa.Table:
    in_order = events.sort_by("seq")
    outside = outside_longest_run(in_order.column("position").to_pylist())
    return in_order.select(["id"]).take(pa.array(outside, pa.int64()))
