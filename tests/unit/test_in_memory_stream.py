"""The in-memory stream behaves as a JetStream stream does; the fakes' example runs as it is written."""

import ast
from textwrap import dedent
from typing import Any

from sea_mq_worker import testing
from sea_mq_worker.nats.message import Stored
from sea_mq_worker.testing.stream import InMemoryStream


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.stream = InMemoryStream(name="S", clock=lambda: self.now, duplicate_window_seconds=10.0)

    def store(self, message_id: str) -> Stored:
        return self.stream.store("s", b"", {"Nats-Msg-Id": message_id})


def test_the_window_counts_from_the_first_copy() -> None:
    bench = Bench()
    assert bench.store("a") == Stored("S", 1)
    bench.now = 9.9
    assert bench.store("a") == Stored("S", 1, duplicate=True)
    bench.now = 10.0
    assert bench.store("a") == Stored("S", 2)


def test_a_restart_keeps_known_ids_of_what_is_stored_and_forgets_those_of_what_was_purged() -> None:
    bench = Bench()
    bench.store("a")
    bench.stream.restart()
    assert bench.store("a").duplicate
    bench.stream.purge()
    assert bench.store("a").duplicate
    assert bench.stream.entries() == []
    bench.stream.restart()
    assert bench.store("a") == Stored("S", 2)


async def test_the_example_of_the_fakes_handles_its_message() -> None:
    example = dedent((testing.__doc__ or "").partition("::\n")[2])
    names: dict[str, Any] = {}
    running = eval(compile(example, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    await running
    assert names["request"].payload == b'{"order": 7}'
