"""Writes of many rows of which PostgreSQL may refuse one: split the batch until that row is alone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sea_mq_worker.errors import ContractError, RowsRefusedError
from sea_mq_worker.ports import Events
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available

_R = TypeVar("_R")
_A = TypeVar("_A")

_REFUSED_MAX = 16
"""If this many rows are refused and none accepted, the rows are not the cause."""


@dataclass(slots=True)
class RowIsolator(Generic[_R, _A]):
    """Writes rows together, and by halves where one of them is refused.

    Attributes:
        write: one statement; each row is in one statement that took effect, or in ``refused``.
        answers: of the statements that took effect, each with its rows.
        refused: rows that PostgreSQL refuses, each with the error.
    """

    rows: Sequence[_R]
    write: Callable[[Sequence[_R]], Awaitable[_A]]
    answers: list[tuple[Sequence[_R], _A]] = field(default_factory=list)
    refused: list[tuple[_R, RowsRefusedError]] = field(default_factory=list)
    _left: list[Sequence[_R]] = field(init=False)

    def __post_init__(self) -> None:
        self._left = [self.rows] if self.rows else []

    async def run(self) -> None:
        """Write the remaining rows; called again after an outage, continue where it stopped.

        Raises:
            ContractError: PostgreSQL refuses all of many rows, so no single row is the cause.
            UnavailableError: from ``write``.
        """
        while self._left:
            part = self._left[0]
            try:
                answer = await self.write(part)
            except RowsRefusedError as error:
                self._left.pop(0)
                self._split(part, error)
            else:
                self._left.pop(0)
                self.answers.append((part, answer))

    def _split(self, part: Sequence[_R], error: RowsRefusedError) -> None:
        if len(part) > 1:
            middle = len(part) // 2
            self._left += [part[:middle], part[middle:]]
            return
        self.refused.append((part[0], error))
        if len(self.refused) >= _REFUSED_MAX and not self.answers:
            self._left, self.refused = [self.rows], []
            raise ContractError(str(error)) from error


async def write_isolated(
    rows: Sequence[_R],
    write: Callable[[Sequence[_R]], Awaitable[_A]],
    *,
    breaker: CircuitBreaker,
    stop: asyncio.Event,
) -> RowIsolator[_R, _A]:
    """Write rows, waiting while the database is away; without a row its circuit learns nothing.

    Raises:
        StoppedError: the worker stopped while the database was away.
    """
    isolator = RowIsolator(rows, write)
    if rows:
        await call_when_available(isolator.run, breaker=breaker, stop=stop)
    return isolator


def report_refused(events: Events, row: str, error: RowsRefusedError) -> None:
    """Notify the operator of a row that PostgreSQL refuses, by its kind and id."""
    events.emit("row_refused", text=f"{row}: {error}")
