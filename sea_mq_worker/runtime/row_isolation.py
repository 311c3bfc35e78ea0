"""Writes of many rows of which PostgreSQL may refuse one: split the batch until that row is alone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from sea_mq_worker.errors import ContractError, RowsRefusedError
from sea_mq_worker.ports import Events
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available

_R = TypeVar("_R")
_A = TypeVar("_A")

_REFUSED_MAX = 16
"""If this many rows are refused and none accepted, the rows are not the cause."""


class RowIsolator(Generic[_R, _A]):
    """Writes rows together, and by halves where one of them is refused.

    Each row is in one statement that took effect, with its answer in ``answers``, or in ``refused``.
    """

    def __init__(self, rows: Sequence[_R], write: Callable[[Sequence[_R]], Awaitable[_A]]) -> None:
        self.answers: list[tuple[Sequence[_R], _A]] = []
        self.refused: list[tuple[_R, RowsRefusedError]] = []
        self._rows = rows
        self._write = write
        self._left = [rows] if rows else []

    async def run(self) -> None:
        """Write the remaining rows; called again after an outage, continue where it stopped.

        Raises:
            ContractError: PostgreSQL refuses all of many rows, so no single row is the cause.
            UnavailableError: from ``write``.
        """
        while self._left:
            part = self._left[0]
            try:
                self.answers.append((part, await self._write(part)))
            except RowsRefusedError as error:
                middle = len(part) // 2
                if middle:
                    self._left += [part[:middle], part[middle:]]
                else:
                    self.refused.append((part[0], error))
                if len(self.refused) >= _REFUSED_MAX and not self.answers:
                    self._left, self.refused = [self._rows], []
                    raise ContractError(str(error)) from error
            self._left.pop(0)


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
