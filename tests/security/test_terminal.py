"""Text from outside that is shown to people neither forges a line nor controls their terminal."""

import pytest
import typer

from sea_mq_worker.cli.support import abort, echo_safe, print_fields, print_table
from sea_mq_worker.nats.errors import plain

HOSTILE = "x\x1b[2J\x1b]0;title\x07\r\x9bforged\u202e\u2028y"


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that were printed, as a terminal would part them."""
    captured = capsys.readouterr()
    return (captured.out + captured.err).splitlines()


@pytest.mark.fault("S12")
def test_nothing_unprintable_reaches_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [[HOSTILE, HOSTILE]], empty="")
    print_fields({"a": HOSTILE})
    echo_safe(HOSTILE)
    with pytest.raises(typer.Exit):
        abort(HOSTILE, 1)
    lines = shown(capsys)
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)


@pytest.mark.fault("S12")
def test_only_lines_of_our_own_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    echo_safe("one\n  -> forged", "  -> two")
    assert shown(capsys) == ["one\\n  -> forged", "  -> two"]


@pytest.mark.fault("S12")
def test_a_brokers_error_is_one_line() -> None:
    assert plain(Exception("said\r\n{}\u2028x")) == "said {} x"
