"""docs/tutorial.md, line by line, on embedded servers."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sea_mq_worker.dev.servers import free_port
from tests.support.documents import ROOT, blocks
from tests.support.waiting import answered, eventually

TUTORIAL = "docs/tutorial.md"
PORT = "8000"
SERVICE = (ROOT / "examples" / "fastapi_sqlalchemy" / "service.py").read_text()
READS = (" list ", "localhost:PORT/bookings/")
"""Parts of commands that change nothing, and are repeated until they print what the document shows."""

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="no curl is here")


def text_of(heading: str, language: str) -> list[str]:
    return [text for found, kind, text in blocks(TUTORIAL) if (found, kind) == (heading, language)]


class Terminals:
    """A folder, and the port of the service in the place of the document's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = os.environ | {"PATH": path}

    async def run(self, lines: str, *, prepare: str = "") -> str:
        """Run lines of a shell and return their standard output."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-e", "-o", "pipefail", "-c", f"{prepare}\n{lines.replace(PORT, str(self.port))}",
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
        return output.decode()

    async def second(self, lines: str) -> str:
        """Run lines in the document's second terminal."""
        [prepare] = text_of("1. Start", "sh")[1:]
        return await self.run(lines, prepare=prepare)

    async def shows(self, heading: str) -> None:
        """Run the commands of a console, and require the output that the document shows."""
        for console in text_of(heading, "console"):
            for command, shown in steps(console):
                await self._shows(command, shown)

    async def _shows(self, command: str, shown: str) -> None:
        is_read = any(part.replace("PORT", PORT) in command for part in READS)
        await eventually(
            lambda: self.second(command),
            until=lambda printed: printed.rstrip("\n") == shown,
            within=30 if is_read else 0,
            what=f"{command} prints {shown}",
        )


def steps(console: str) -> Iterator[tuple[str, str]]:
    for step in console.split("$ ")[1:]:
        command, _, shown = step.partition("\n")
        yield command, shown.rstrip("\n")


@pytest_asyncio.fixture
async def terminals(tmp_path: Path) -> AsyncIterator[Terminals]:
    """The first terminal, in which the service runs."""
    made = Terminals(tmp_path)
    init, rest = text_of("1. Start", "sh")[0].split("\n", 1)
    await made.run(init)
    settings = tmp_path / "bookings" / ".env"
    settings.write_text(settings.read_text().replace(PORT, str(made.port)))
    first = await asyncio.create_subprocess_exec(
        "bash", "-c", rest.replace(PORT, str(made.port)).replace("\npython", "\nexec python"),
        cwd=tmp_path, env=made.environment, start_new_session=True,
    )  # fmt: skip
    try:
        await answered(f"http://127.0.0.1:{made.port}/docs", by=first, within=60)
        yield made
    finally:
        os.killpg(first.pid, signal.SIGINT)
        await asyncio.wait_for(first.wait(), 30)


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def test_the_parts_of_the_service_that_the_tutorial_shows_are_its_own() -> None:
    shown = [text for _, kind, text in blocks(TUTORIAL) if kind == "python" and not text.startswith("#")]
    assert len(shown) == 2
    assert [part for part in shown if unindented(part) not in unindented(SERVICE)] == []


@pytest.mark.slow
async def test_the_tutorial_does_what_it_shows(terminals: Terminals) -> None:
    await terminals.shows("2. Publish an event")
    [sender] = [text for text in text_of("3. Handle a message", "python") if text.startswith("# payments.py")]
    (terminals.folder / "bookings" / "payments.py").write_text(sender)
    await terminals.shows("3. Handle a message")
    await terminals.shows("4. A message that cannot be handled")
    listing, marking = text_of("5. Replay an event", "sh")[0].splitlines()
    ids = (await terminals.second(f"{listing} --json | grep '\"id\"' | cut -d'\"' -f4")).split()
    assert len(ids) == 2
    assert await terminals.second(marking.replace("EVENT", ids[-1])) == "marked dead 1 of 1\n"
    await terminals.shows("5. Replay an event")
    [tests] = text_of("6. Test the service", "sh")
    assert "2 passed" in await terminals.second(tests)
