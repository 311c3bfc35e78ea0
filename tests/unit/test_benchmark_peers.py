"""What the comparison with other relays makes of its rounds, and that every description can be used."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.comparison import OURS, RELAYS, times
from benchmarks.peer_run import Measured
from benchmarks.peer_workloads import orders
from benchmarks.peers import Size, descriptions
from kit.description import Description, filled
from kit.ledger import positional

FILES = sorted(RELAYS.glob("*.toml"))
PLACES = {
    name: name
    for name in (
        *("python", "work", "root", "own", "instance", "stream", "nats_url", "database_url"),
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
    statement, arguments = positional(
        description.table.insert, {"id": "i", "type": "t", "key": None, "subject": "s", "body": "b"}
    )
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


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    ours = {1: measured(400), 2: measured(900), 3: measured(100)}
    theirs = {1: measured(100), 2: measured(300), 3: measured(100)}
    assert times(ours, theirs) == [3.0, 1.0, 4.0]


def test_rounds_that_only_one_of_them_finished_are_no_part_of_the_ratio() -> None:
    assert times({1: measured(400), 2: measured(900)}, {2: measured(300), 3: measured(1)}) == [3.0, 3.0, 3.0]
    assert times({1: measured(400)}, {2: measured(300)}) == []


def test_a_backlog_has_as_many_events_to_a_key_as_wanted_and_none_next_to_another() -> None:
    keys = [event.key for event in orders(200, 10)]
    assert {keys.count(key) for key in keys} == {10}
    assert all(one != other for one, other in pairwise(keys))
    assert {event.key for event in orders(20, 0)} == {None}
