"""Compute digests of archived events from the lake; ``pipeline_archive.sql`` computes those of the outbox."""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.lake.schemas import ARCHIVE

ADDED = ("batch", "context", "date")
"""Columns of the lake that are not in the outbox."""

KEPT = tuple(field.name for field in ARCHIVE.schema if field.name not in ADDED)
"""Columns of the outbox that the lake stores."""

TIMES = tuple(name for name in KEPT if pa.types.is_timestamp(ARCHIVE.schema.field(name).type))

_IDS = ("id", "correlation_id", "causation_id")
_HALF = 15
"""Number of a digest's hexadecimal digits that a sum uses; 15 digits fit into a bigint in both systems."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a set of events: their number, and the sums of both halves of their digests."""

    rows: int
    left_sum: int
    right_sum: int

    @property
    def digest(self) -> str:
        """Both sums as one short text."""
        return f"{self.left_sum:x}-{self.right_sum:x}"


def content_of(rows: DataFrame) -> Content:
    """Count archived rows and sum their digests."""
    digests = rows.select(_digest().alias("digest"))
    left, right = (F.conv(F.substring("digest", start, _HALF), 16, 10) for start in (1, -_HALF))
    sums = [F.coalesce(F.sum(half.cast("decimal(20)")), F.lit(0)) for half in (left, right)]
    (row,) = digests.agg(F.count("*"), *sums).collect()
    return Content(*map(int, row))


def keys_of(rows: DataFrame) -> pa.Table:
    """Read ``id``, ``published_at``, ``digest`` and ``bytes`` of archived rows into the driver's memory."""
    size = F.octet_length(F.concat_ws("", "payload", "headers", "metadata"))
    return rows.select("id", "published_at", _digest().alias("digest"), size.alias("bytes")).toArrow()


def _digest() -> Column:
    return F.md5(F.encode(F.concat_ws("", *(part for name in KEPT for part in _parts(name))), "UTF-8"))


def _parts(name: str) -> tuple[Column, ...]:
    """Return the texts of a column; a null column has none."""
    kind = ARCHIVE.schema.field(name).type
    if pa.types.is_timestamp(kind):
        return F.unix_micros(name).cast("string"), F.lit(";")
    if name in _IDS or pa.types.is_integer(kind):
        return F.col(name).cast("string"), F.lit(";")
    return F.char_length(name).cast("string"), F.lit(":"), F.col(name)
