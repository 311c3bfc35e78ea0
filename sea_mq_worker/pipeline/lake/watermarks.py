"""Watermarks: a writer's progress, committed atomically with the data."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import DeltaTable

from sea_mq_worker.pipeline.errors import PipelineError


class ConflictError(PipelineError):
    """Another run changed the table in the meantime; read its current state before the next attempt."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Progress of a writer.

    Attributes:
        name: name of the watermark.
        value: value after the commit.
        after: required value before the commit, 0 if there is none yet; None: any value below ``value``.
    """

    name: str
    value: int
    after: int | None = None


def is_reached(table: DeltaTable, watermarks: Sequence[Watermark]) -> bool:
    """Return whether the first watermark has already reached its value.

    Raises:
        ConflictError: a watermark has neither the value ``value`` nor the value ``after``.
    """
    current = {watermark.name: table.transaction_version(watermark.name) for watermark in watermarks}
    first = watermarks[0]
    reached = current[first.name]
    if reached is not None and (reached == first.value or (first.after is None and reached > first.value)):
        return True
    for watermark in watermarks:
        if watermark.after is not None and (current[watermark.name] or 0) != watermark.after:
            raise ConflictError(
                f"{table.table_uri}: watermark {watermark.name!r} is at {current[watermark.name]}, not at "
                f"{watermark.after}: another run writes to this table; wait for it or stop it, then run again"
            )
    return False
