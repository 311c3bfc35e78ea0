"""Comparisons with other relays, their descriptions, and the commands that take the published figures."""

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.__main__ import options_parser
from benchmarks.comparison import RELAYS, STEADY, times
from benchmarks.peer_run import Measured
from benchmarks.publish import COMMANDS
from benchmarks.relay import Description, Event, filled
from benchmarks.workloads import long_workloads, network_workloads, workloads

FILES = sorted(RELAYS.glob("*.toml"))
PLACES = {
    name: name
    for name in (
        *("python", "work", "root", "own", "stream", "nats_url", "database_url"),
        *(f"database_{part}" for part in ("address", "host", "port", "user", "password", "name")),
    )
}


def measured(rate: float, relay: float = 1.0) -> Measured:
    return Measured(rate=rate, cpu_seconds_per_100000={"relay": relay, "postgres": 2.0, "nats": 3.0})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_description_can_be_used(file: Path) -> None:
    description = Description.load(file)
    assert description.name == file.stem
    assert description.about
    commands = (*description.relay.install, *description.relay.prepare, description.relay.command)
    values = tuple(description.relay.environment.values())
    for command in (*commands, values):
        filled(command, PLACES)
    statement, arguments = description.insertion(Event(id="i", key=None, body="b"))
    assert "b" in arguments
    assert ";" not in statement


def test_the_ratio_is_the_median_of_the_ratios_of_rounds_that_both_finished() -> None:
    ours = {1: measured(400), 2: measured(900), 3: measured(100)}
    theirs = {1: measured(100), 2: measured(300), 3: measured(100)}
    assert times(ours, theirs) == [3.0, 1.0, 4.0]
    assert times({1: measured(400), 2: measured(900)}, {2: measured(300), 3: measured(1)}) == [3.0, 3.0, 3.0]
    assert times({1: measured(400)}, {2: measured(300)}) == []


@pytest.mark.parametrize("command", COMMANDS.values())
def test_a_command_names_workloads_that_exist(command: str) -> None:
    options = options_parser().parse_args([])
    known = {*workloads(options), *long_workloads(options), *network_workloads(options), STEADY}
    named = {value for option, value in pairwise(shlex.split(command)) if option == "--workload"}
    assert named <= known
