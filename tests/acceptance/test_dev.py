"""The README's first command, as a newcomer sees it."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.documents import blocks, commands, fresh_checkout
from tests.support.waiting import eventually

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals orphans")


HEADING = "Sixty seconds"


async def start(folder: Path, *options: str, **given: Any) -> asyncio.subprocess.Process:
    streams = {"stdout": PIPE, "stderr": STDOUT} | given
    command = (sys.executable, "-m", "sea_mq_worker", "dev", "--folder", str(folder), *options)
    return await asyncio.create_subprocess_exec(*command, **streams, start_new_session=True)


async def said(process: asyncio.subprocess.Process, text: bytes) -> None:
    """Read what it says up to a line with the text."""
    assert process.stdout is not None
    while text not in (line := await asyncio.wait_for(process.stdout.readline(), 60)):
        assert line, f"dev ended without a word of {text!r}"


async def ended(process: asyncio.subprocess.Process, within: float | None = 30) -> tuple[int | None, str]:
    """Wait for its end; return its exit code, and what it said."""
    said, _ = await asyncio.wait_for(process.communicate(), within)
    return process.returncode, said.decode()


def children_of(folder: Path) -> list[str]:
    """Return the command lines and working folders of the processes that have to do with the folder."""
    running = [one.info for one in psutil.process_iter(["cmdline", "cwd"])]
    lines = [" ".join([*(one["cmdline"] or ()), one["cwd"] or ""]) for one in running]
    return [line for line in lines if str(folder) in line]


@linux
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_first_command_of_the_readme_works_in_a_fresh_checkout(tmp_path: Path) -> None:
    """What it shows is what the README says; nothing of it stays behind."""
    [command] = commands("README.md", HEADING)
    install, _, show = command.text.rpartition(" && ")
    checkout = fresh_checkout(tmp_path / "checkout")
    code, said = await run(install, checkout)
    if code:
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(f"pip cannot install here: {said}")

    code, said = await run(f"{show} --folder {tmp_path / 'dev'} --exit", checkout)
    assert code == 0, said
    [shown] = [text for heading, kind, text in blocks("README.md") if (heading, kind) == (HEADING, "text")]
    assert uncounted(shown) in uncounted(said)
    assert not children_of(tmp_path)


def uncounted(output: str) -> str:
    """Leave out how often the handler was called: that depends on what is repeated."""
    return re.sub(r"\d+ calls", "N calls", output)


async def run(line: str, folder: Path) -> tuple[int | None, str]:
    """Run a line of a shell to its end; return its exit code, and what it said."""
    process = await asyncio.create_subprocess_shell(line, cwd=folder, stdout=PIPE, stderr=STDOUT)
    return await ended(process, within=None)


@linux
async def test_ctrl_c_stops_everything_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    process = await start(folder, "--events", "20")
    await said(process, b"until Ctrl-C")
    assert len(children_of(folder)) >= 4
    look = f". {folder}/environment && python -m sea_mq_worker depth && psql \"$SEA_MQ_DATABASE_URL\" -c ''"
    code, reported = await run(f"PATH=/usr/bin; {look}", tmp_path)
    assert code == 0, reported
    os.killpg(process.pid, signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert not children_of(folder)


@linux
async def test_a_command_runs_on_the_servers_when_the_traffic_has_arrived(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; print('python', sys.executable, flush=True);"
        " run = ['python', '-m', 'sea_mq_worker']; subprocess.run([*run, 'depth', '--json'], check=True);"
        " subprocess.run([*run, 'doctor', '--strict'], check=True, stdout=sys.stderr); sys.exit(7)"
    )
    command = ("--events", "20", "--", "python", "-c", code)
    process = await start(tmp_path / "dev", *command, stderr=PIPE, env=os.environ | {"PATH": "/usr/bin"})
    output, reported = (text.decode() for text in await asyncio.wait_for(process.communicate(), 60))
    assert process.returncode == 7, reported
    interpreter, depth = output.split("\n", 1)
    assert Path(interpreter.removeprefix("python ")).parent == Path(sys.executable).parent
    assert json.loads(depth)
    assert "20 events written, 20 PUBLISHED" in reported
    assert not children_of(tmp_path / "dev")


@linux
async def test_a_kill_ends_the_servers_and_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    code = "import time; print('runs', flush=True); time.sleep(600)"
    process = await start(folder, "--events", "20", "--", "python", "-c", code, str(folder))
    await said(process, b"runs\n")
    process.kill()
    await eventually(lambda: not children_of(folder), within=30)


async def test_a_missing_command_is_reported_before_anything_starts(tmp_path: Path) -> None:
    process = await start(tmp_path / "dev", "--", "no-such-program")
    text = "no-such-program: program not found on PATH, or not executable\n"
    assert await ended(process) == (2, text)
    assert not (tmp_path / "dev").exists()


async def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dev").touch()
    process = await start(tmp_path / "dev")
    assert await ended(process) == (1, f"{tmp_path}/dev/postgres cannot be used: Not a directory\n")


@linux
async def test_ctrl_c_while_servers_start_stops_them_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    process = await start(folder)
    await eventually((folder / "postgres" / "postgres.log").exists, within=30)
    os.killpg(process.pid, signal.SIGINT)
    assert await ended(process) == (1, "Stopped before the worker was ready.\n")
    assert not children_of(folder)


async def test_an_own_context_keeps_the_limits_of_the_environment(tmp_path: Path) -> None:
    own = {"SEA_MQ_CONSUMERS": "", "SEA_MQ_STREAM_MAX_BYTES": "33554432", "SEA_MQ_CONTEXT": "orders"}
    show = ("--own", "--exit", "--", "python", "-m", "sea_mq_worker", "streams", "check")
    for replicas, expected in (("1", 0), ("3", 3)):
        given = os.environ | own | {"SEA_MQ_STREAM_REPLICAS": replicas}
        process = await start(tmp_path / replicas, *show, env=given)
        code, said = await ended(process, 60)
        assert code == expected, said
        assert ("32 MiB each" if expected == 0 else "set SEA_MQ_STREAM_REPLICAS to at most") in said
