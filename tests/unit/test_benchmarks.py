"""Comparisons with other relays, their descriptions, and the commands that take the published figures."""

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.__main__ import options_parser
from benchmarks.comparison import OURS, RELAYS, STEADY, times
from benchmarks.figures import FOLDER
from benchmarks.looks import MEASURES, PROCESSED, PUBLISHED
from benchmarks.peer_run import Measured
from benchmarks.peer_workloads import orders
from benchmarks.peers import Size, descriptions
from benchmarks.publish import COMMANDS
from benchmarks.relay import Description, Event, filled
from benchmarks.report import WORKER
from benchmarks.results import of_workloads
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


def test_our_own_worker_is_always_there_and_comes_first() -> None:
    assert [each.name for each in descriptions(["txoutbox"])] == [OURS, "txoutbox"]
    everything = descriptions()
    assert everything[0].name == OURS
    assert len(everything) == len(FILES)


def test_a_slow_relay_gets_a_smaller_backlog_but_never_too_small_a_one() -> None:
    size = Size(events=20_000, seconds=4)
    assert [size.at(rate) for rate in (100, 2_100, 90_000)] == [5_000, 8_000, 20_000]
    assert Size(events=2_000, seconds=4).at(90_000) == 2_000


def test_the_ratio_is_the_median_of_the_ratios_of_rounds_that_both_finished() -> None:
    ours = {1: measured(400), 2: measured(900), 3: measured(100)}
    theirs = {1: measured(100), 2: measured(300), 3: measured(100)}
    assert times(ours, theirs) == [3.0, 1.0, 4.0]
    assert times({1: measured(400), 2: measured(900)}, {2: measured(300), 3: measured(1)}) == [3.0, 3.0, 3.0]
    assert times({1: measured(400)}, {2: measured(300)}) == []


def test_a_backlog_has_as_many_events_to_a_key_as_wanted_and_none_next_to_another() -> None:
    keys = [event.key for event in orders(200, 10)]
    assert {keys.count(key) for key in keys} == {10}
    assert all(one != other for one, other in pairwise(keys))
    assert {event.key for event in orders(20, 0)} == {None}


def test_looks_may_all_read_many_pages() -> None:
    look = {f"depth: {measure}": 200.0 for measure in MEASURES}
    lines = of_workloads({"looks": {"median": {WORKER: {"more": {PUBLISHED: 9.0, PROCESSED: 9.0, **look}}}}})
    assert [*lines][-1].split() == ["|", "`depth`", "|", "200", "|", "200", "|"]


def test_each_file_of_figures_has_a_command() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS.values())
def test_a_command_names_workloads_that_exist(command: str) -> None:
    options = options_parser().parse_args([])
    known = {*workloads(options), *long_workloads(options), *network_workloads(options), STEADY}
    named = {value for option, value in pairwise(shlex.split(command)) if option == "--workload"}
    assert named <= known
