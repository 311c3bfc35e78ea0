"""Tables as wide as a terminal: whatever the width, what names a row can be copied."""

import uuid

import pytest

from sea_mq_worker.cli.support import table

COLUMNS = ("id", "state", "event_type", "ordering_key", "attempts", "last_error")
ROWS = [
    (uuid.uuid4(), "DEAD", "order.created", "order-4711", 10, "too large: 2000000 bytes, the stream takes 1"),
    (uuid.uuid4(), "PENDING", "order.paid", None, 0, None),
]


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 200])
def test_a_table_fits_and_names_every_row_whole(width: int) -> None:
    lines = list(table(COLUMNS, ROWS, width=width))
    assert [line for line in lines if len(line) > max(width, 36)] == []
    for row in ROWS:
        [named] = [line for line in lines if str(row[0]) in line]
        assert named.startswith(str(row[0]))
    assert any("DEAD" in line for line in lines)


def test_a_wide_terminal_has_everything_and_a_narrow_one_a_mark_where_something_is_cut() -> None:
    wide = "\n".join(table(COLUMNS, ROWS, width=200))
    assert "the stream takes 1" in wide
    assert "\u2026" not in wide
    narrow = list(table(COLUMNS, ROWS, width=118))
    assert len(narrow) == 3
    assert narrow[1].endswith("\u2026")


def test_without_room_for_columns_a_row_stands_in_lines_of_its_own() -> None:
    lines = list(table(COLUMNS, ROWS, width=60))
    assert lines[:2] == [str(ROWS[0][0]), "  state DEAD  event_type order.created"]
    assert lines[-1] == "  state PENDING  event_type order.paid  attempts 0"


def test_a_pipe_gets_everything() -> None:
    [_, first, _] = table(COLUMNS, ROWS, width=None)
    assert first.endswith("the stream takes 1")
