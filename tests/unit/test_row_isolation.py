"""Rows that PostgreSQL refuses are found by halves; all others are written."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sea_mq_worker.errors import ContractError, RowsRefusedError, StoreUnavailableError
from sea_mq_worker.runtime.row_isolation import RowIsolator


class Table:
    def __init__(self, bad: frozenset[int]) -> None:
        self.bad = bad
        self.written: list[int] = []
        self.statements = 0
        self.away_at = 0

    async def write(self, rows: Sequence[int]) -> frozenset[int]:
        self.statements += 1
        if self.statements == self.away_at:
            raise StoreUnavailableError("away")
        if self.bad & set(rows):
            raise RowsRefusedError("not this one")
        self.written += rows
        return frozenset(rows)


@given(
    rows=st.integers(0, 40), bad=st.frozensets(st.integers(0, 39), max_size=15), away_at=st.integers(0, 20)
)
async def test_each_row_is_written_once_or_refused(rows: int, bad: frozenset[int], away_at: int) -> None:
    table = Table(bad & set(range(rows)))
    table.away_at = away_at
    pieces = RowIsolator(range(rows), table.write)
    try:
        await pieces.run()
    except StoreUnavailableError:
        await pieces.run()
    assert {row for row, _ in pieces.refused} == table.bad
    assert sorted(table.written) == sorted(set(range(rows)) - table.bad)
    assert sorted(row for part, _ in pieces.answers for row in part) == sorted(table.written)


async def test_one_bad_row_of_a_batch_costs_few_statements() -> None:
    table = Table(frozenset({77}))
    await RowIsolator(range(1000), table.write).run()
    assert table.statements <= 21


async def test_the_refusal_of_all_rows_is_one_retriable_error() -> None:
    table = Table(frozenset(range(100)))
    pieces = RowIsolator(range(100), table.write)
    with pytest.raises(ContractError, match="not this one"):
        await pieces.run()
    table.bad = frozenset()
    await pieces.run()
    assert (sorted(table.written), pieces.refused) == (list(range(100)), [])
