"""What several jobs do with frames."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it


def deduplicate_by(rows: DataFrame, key: str | Sequence[str | Column], *order: str | Column) -> DataFrame:
    """Return one row of each key: the one that comes first in the order."""
    keys = [key] if isinstance(key, str) else key
    place = F.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    return rows.withColumn("place_of_key", place).where("place_of_key = 1").drop("place_of_key")
