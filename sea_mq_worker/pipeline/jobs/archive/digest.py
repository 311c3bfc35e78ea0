"""The digest of an archived event, computed from the lake; ``pipeline_archive.sql`` has it for the outbox."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.pipeline.lake.schemas import ARCHIVE

ADDED = ("batch", "context", "date")
"""Columns of the lake that the outbox does not have."""

KEPT = tuple(field.name for field in ARCHIVE.schema if field.name not in ADDED)
"""Columns of the outbox that the lake keeps."""

TIMES = tuple(name for name in KEPT if pa.types.is_timestamp(ARCHIVE.schema.field(name).type))

_IDS = ("id", "correlation_id", "causation_id")
_HALF = 15
"""Hexadecimal digits of a digest that a sum takes: so many fit into a bigint on both sides."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a set of events holds: their number, and the sums of both halves of their digests."""

    rows: int
    left_sum: int
    right_sum: int

    def __add__(self, other: "Content") -> "Content":
        """Return what both sets hold."""
        return Content(
            self.rows + other.rows, self.left_sum + other.left_sum, self.right_sum + other.right_sum
        )

    @property
    def digest(self) -> str:
        """Both sums, short."""
        return f"{self.left_sum:x}-{self.right_sum:x}"


NOTHING = Content(0, 0, 0)


def keys_of(frame: DataFrame) -> pa.Table:
    """Read of archived rows, into the driver's memory: ``id``, ``published_at``, ``digest`` and ``bytes``."""
    size = F.octet_length(F.concat_ws("", "payload", "headers", "metadata"))
    return frame.select("id", "published_at", _digest().alias("digest"), size.alias("bytes")).toArrow()


def slices(keys: pa.Table, *, rows: int, size: int) -> Iterator[pa.Table]:
    """Part what ``keys_of`` has read, so that no part has more rows, nor more bytes unless it is one row."""
    start, room = 0, size
    for at, weight in enumerate(keys.column("bytes").to_pylist()):
        if at > start and (at - start == rows or weight > room):
            yield keys.slice(start, at - start)
            start, room = at, size
        room -= weight
    if start < keys.num_rows:
        yield keys.slice(start)


def content_of(keys: pa.Table) -> Content:
    """Sum up what ``keys_of`` has read."""
    digests = keys.column("digest").to_pylist()
    return Content(
        rows=len(digests),
        left_sum=sum(int(digest[:_HALF], 16) for digest in digests),
        right_sum=sum(int(digest[-_HALF:], 16) for digest in digests),
    )


def _digest() -> Column:
    return F.md5(F.encode(F.concat_ws("", *(part for name in KEPT for part in _parts(name))), "UTF-8"))


def _parts(name: str) -> tuple[Column, ...]:
    """Return the texts of a column, none where it is null."""
    kind = ARCHIVE.schema.field(name).type
    if pa.types.is_timestamp(kind):
        return F.unix_micros(name).cast("string"), F.lit(";")
    if name in _IDS or pa.types.is_integer(kind):
        return F.col(name).cast("string"), F.lit(";")
    return F.char_length(name).cast("string"), F.lit(":"), F.col(name)
