"""Prints how many files and functions one event and one message pass, in a traced worker on real servers.

    python -m tools.path           # counts
    python -m tools.path --list    # and the functions, in the order in which each is first called

It starts the worker by `dev`, with PostgreSQL and NATS servers of its own, and runs itself again beside it.
What the worker also calls while idle, such as a renewal or a sample, counts apart.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import asyncpg
import nats

ROOT = Path(__file__).parents[1]
PACKAGE = "sea_mq_worker"
FOLDER, LIST = "TRACE_FOLDER", "TRACE_LIST"
"""Variables of this tool; `dev` passes them on to its worker and to the program beside it."""
_ATTEMPTS = 3
"""Traces of each unit of work: the shortest has the least of what merely happened meanwhile."""

Called = list[tuple[str, str]]
"""Files of the package, and the functions in them, by their first call."""


def record_calls() -> None:
    """In the worker: write what it calls between SIGUSR1 and SIGUSR2 into the trace's folder."""
    folder = Path(os.environ[FOLDER])
    called: dict[tuple[str, str], None] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and f"/{PACKAGE}/" in file:
            called[file.rpartition(f"/{PACKAGE}/")[2], frame.f_code.co_qualname] = None

    def begin(_: int, __: FrameType | None) -> None:
        called.clear()
        sys.setprofile(profile)

    def end(_: int, __: FrameType | None) -> None:
        sys.setprofile(None)
        part = folder / "called.part"
        part.write_text(json.dumps(list(called)))
        part.rename(folder / "called.json")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    (folder / "pid").write_text(str(os.getpid()))


async def _called_in(folder: Path, step: Callable[[], Awaitable[object]]) -> Called:
    pid, found = int((folder / "pid").read_text()), folder / "called.json"
    found.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    await asyncio.sleep(0.2)
    await step()
    await asyncio.sleep(0.3)  # the worker confirms to the servers after the row is complete
    os.kill(pid, signal.SIGUSR2)
    while not found.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return [(file, name) for file, name in json.loads(found.read_text())]


async def _trace(folder: Path) -> None:
    database = await asyncpg.connect(os.environ["SEA_MQ_DATABASE_URL"])
    broker = await nats.connect(os.environ["SEA_MQ_NATS_URL"])

    async def until(query: str, new: uuid.UUID) -> None:
        while not await database.fetchval(query, new):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def event(key: str | None) -> None:
        new = uuid.uuid4()
        await database.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, ordering_key)"
            " VALUES ($1, 'order', '1', 'order.paid', '{\"a\": 1}', $2)",
            new,
            key,
        )
        await until("SELECT published_at IS NOT NULL FROM outbox_events WHERE id = $1", new)

    async def message() -> None:
        new = uuid.uuid4()
        headers = {"Nats-Msg-Id": str(new)}
        await broker.jetstream().publish("vibespro.event.vibe_created.v1", b'{"a": 1}', headers=headers)
        await until("SELECT processed_at IS NOT NULL FROM inbox_messages WHERE message_id = $1", new)

    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "event": lambda: event(None),
        "keyed event": lambda: event("k"),
        "message": message,
    }
    for step in [*steps.values()] * 2:  # statements are prepared, connections are open
        await step()
    await asyncio.sleep(1)
    idle = set(await _called_in(folder, lambda: asyncio.sleep(2)))
    for name, step in steps.items():
        called = min([await _called_in(folder, step) for _ in range(_ATTEMPTS)], key=len)
        own = [one for one in called if one not in idle]
        files, own_files = ({file for file, _ in some} for some in (called, own))
        apart = f"idle work apart: {len(own_files)} and {len(own)}"
        print(f"{name:12}{len(files):4} files {len(called):5} functions   ({apart})")  # noqa: T201
        for file, function in called if os.environ[LIST] else ():
            print(f"    {'idle' if (file, function) in idle else '':6}{file:28}{function}")  # noqa: T201
    await broker.close()
    await database.close()


def main() -> int:
    """Run the command: here, and again beside the worker that it starts."""
    parser = argparse.ArgumentParser(prog="python -m tools.path", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also print the functions, in order")
    given = parser.parse_args()
    if FOLDER in os.environ:
        asyncio.run(_trace(Path(os.environ[FOLDER])))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(
            "import sys\nif 'run' in sys.orig_argv:\n    import tools.path as p; p.record_calls()\n"
        )
        own = {FOLDER: folder, LIST: "1" if given.list else "", "PYTHONPATH": f"{folder}:{ROOT}"}
        dev = [sys.executable, "-m", PACKAGE, "dev", "--events", "20", "--"]
        command = [*dev, sys.executable, "-m", "tools.path"]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | own, timeout=120, check=False)  # noqa: S603
        return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
