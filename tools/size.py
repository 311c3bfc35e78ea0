"""Prints how large the product is, and how many files and functions one event and one message pass.

    python -m tools.size           # lines, files, names imported per 100 lines of code, classes; words
    python -m tools.size --path    # traces a worker of `dev`, less what it also does while idle

"Code" is all lines but blanks, imports, docstrings and comments on lines of their own.
"""

import argparse
import ast
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import asyncpg
import nats

ROOT = Path(__file__).parents[1]
PACKAGE = "sea_mq_worker"
SMALL = 80
"""A file of fewer lines counts as small, unless it is an `__init__.py`."""


@dataclass(frozen=True)
class Module:
    """One file of Python, counted."""

    path: Path
    lines: int
    code: int
    names: int
    """Names that it imports."""
    classes: int
    functions: dict[str, int]
    """The lines of each function by `name:line`, from `def` to its end, without the docstring."""

    @property
    def small(self) -> bool:
        """Whether the file needs a reason to be one."""
        return self.lines < SMALL and self.path.name != "__init__.py"


def names_per_100_lines(modules: Iterable[Module]) -> float:
    """Return the density of reference: imported names for each 100 lines of code."""
    modules = list(modules)
    return 100 * sum(m.names for m in modules) / max(1, sum(m.code for m in modules))


def measure(path: Path) -> Module:
    """Read one file of Python."""
    text = path.read_text()
    lines, frame, texts = text.splitlines(), set[int](), set[int]()
    names = classes = 0
    functions = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            frame |= set(_span(node))
            names += len(node.names)
        elif _is_text(node):
            frame |= set(_span(node))
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = _span(node.body[0]) if _is_text(node.body[0]) else range(0)
            functions[f"{node.name}:{node.lineno}"] = len(_span(node)) - len(docstring)
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
            texts |= set(_span(node))
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if not bare or (bare.startswith("#") and number not in texts):
            frame.add(number)
    return Module(path, len(lines), len(lines) - len(frame), names, classes, functions)


def _span(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", None) or 0) + 1)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def parts() -> dict[str, list[Module]]:
    """Return the checkout's Python by what it is for."""
    return {
        "worker": [m for m in _modules(PACKAGE) if not _of_pipeline(m)],
        "pipeline": [m for m in _modules(PACKAGE) if _of_pipeline(m)],
        "tests, tools": [m for m in _modules("tests", "tools") if not _of_pipeline(m)],
        "pipeline's tests": [m for m in _modules("tests") if _of_pipeline(m)],
        "benchmarks": list(_modules("benchmarks")),
    }


def _modules(*folders: str) -> Iterator[Module]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield measure(path)


def _of_pipeline(module: Module) -> bool:
    """A folder of the name, or a file beside others: `cli/pipeline.py`."""
    return any(part.partition(".")[0] == "pipeline" for part in module.path.relative_to(ROOT).parts)


def words() -> int:
    """Count the words of all documents but the changelog."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    documents = (ROOT / name for name in listed.stdout.splitlines() if name != "CHANGELOG.md")
    return sum(len(path.read_text().split()) for path in documents if path.is_file())


def report() -> str:
    """Return the table of sizes."""
    rows = [f"{'':18}{'lines':>7}{'files':>7}{'below 80':>10}{'names/100':>11}{'classes':>9}"]
    for part, modules in parts().items():
        lines, small = sum(m.lines for m in modules), sum(m.small for m in modules)
        density, classes = names_per_100_lines(modules), sum(m.classes for m in modules)
        rows.append(f"{part:18}{lines:7}{len(modules):7}{small:10}{density:11.1f}{classes:9}")
    return "\n".join([*rows, f"{'documents':18}{words():7} words"])


# --- The path of one event and one message ---

TRACE = "TRACE_FOLDER"
"""Not one of the worker's settings: `dev` passes none of those on."""
Called = set[tuple[str, str]]
"""Files of the package, and the functions in them."""


def record_calls() -> None:
    """In a worker: write what it calls between SIGUSR1 and SIGUSR2 into the trace's folder."""
    folder = Path(os.environ[TRACE])
    called: Called = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and f"/{PACKAGE}/" in file:
            called.add((file.rpartition(f"/{PACKAGE}/")[2], frame.f_code.co_qualname))

    def begin(_: int, __: FrameType | None) -> None:
        called.clear()
        sys.setprofile(profile)

    def end(_: int, __: FrameType | None) -> None:
        sys.setprofile(None)
        part = folder / "called.part"
        part.write_text(json.dumps(sorted(called)))
        part.rename(folder / "called.json")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    (folder / "pid").write_text(str(os.getpid()))


async def _trace(folder: Path) -> None:
    """Beside a worker of `dev`: send one of each, and print what the worker called for it."""
    pid = int((folder / "pid").read_text())
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

    async def called_in(step: Callable[[], Awaitable[object]]) -> Called:
        found = folder / "called.json"
        found.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        await asyncio.sleep(0.2)
        await step()
        await asyncio.sleep(0.3)  # the worker confirms to the servers after the row is complete
        os.kill(pid, signal.SIGUSR2)
        while not found.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return {(file, name) for file, name in json.loads(found.read_text())}

    for key in (None, "k", None, "k"):
        await event(key)
        await message()
    await asyncio.sleep(1)
    idle = await called_in(lambda: asyncio.sleep(2))
    for name, step in {
        "event": lambda: event(None),
        "event with a key": lambda: event("k"),
        "message": message,
    }.items():
        called = await called_in(step)
        files, own = {file for file, _ in called}, {file for file, _ in called - idle}
        print(  # noqa: T201
            f"{name:18}{len(files):4} files {len(called):5} functions"
            f"   (idle work apart: {len(own)} and {len(called - idle)})"
        )
    await broker.close()
    await database.close()


def trace_path() -> int:
    """Trace a worker of `dev`, which runs this module again beside it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(
            "import sys\nif 'run' in sys.orig_argv:\n    import tools.size as t; t.record_calls()\n"
        )
        environment = os.environ | {TRACE: folder, "PYTHONPATH": f"{folder}:{ROOT}"}
        dev = [sys.executable, "-m", PACKAGE, "dev", "--events", "20", "--"]
        command = [*dev, sys.executable, "-m", "tools.size", "--path"]
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=120, check=False).returncode  # noqa: S603


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.size", description=__doc__.splitlines()[0])
    parser.add_argument("--path", action="store_true", help="trace one event and one message instead")
    if not parser.parse_args().path:
        print(report())  # noqa: T201
        return 0
    if TRACE not in os.environ:
        return trace_path()
    asyncio.run(_trace(Path(os.environ[TRACE])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
