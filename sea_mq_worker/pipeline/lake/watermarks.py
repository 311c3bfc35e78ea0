"""Marks: how far a writer has come, committed in one step with what it has written."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import DeltaTable

from sea_mq_worker.pipeline.errors import PipelineError


class ConflictError(PipelineError):
    """Another run changed the table in between; what is there now has to be looked at anew."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a writer has come.

    Attributes:
        name: whose mark it is.
        value: how far the commit brings it.
        after: how far it must be before, 0 for not yet there; None: anywhere below ``value``.
    """

    name: str
    value: int
    after: int | None = None


def is_reached(table: DeltaTable, marks: Sequence[Watermark]) -> bool:
    """Tell whether what the marks stand for was committed before: whether the first is where it is to be.

    Raises:
        ConflictError: a mark is neither there nor where it must be before.
    """
    standing = {mark.name: table.transaction_version(mark.name) for mark in marks}
    first = marks[0]
    reached = standing[first.name]
    if reached is not None and (reached == first.value or (first.after is None and reached > first.value)):
        return True
    for mark in marks:
        if mark.after is not None and (standing[mark.name] or 0) != mark.after:
            raise ConflictError(
                f"{table.table_uri}: mark {mark.name!r} stands at {standing[mark.name]}, not at "
                f"{mark.after}: another run writes there, let it finish or stop it, then run again"
            )
    return False
