"""A command of the user's, run on the demo's servers."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_LEAVE_SECONDS = 3.0
"""Ctrl-C reaches the command as well: so long it may take to end by itself before it is told to."""
_END_SECONDS = 30.0


class CommandStartError(Exception):
    """The command cannot be started; the text says why."""


def check_command(command: Sequence[str]) -> None:
    """See to it that there is such a program, before anything else is started.

    Raises:
        CommandStartError: there is none.
    """
    if shutil.which(command[0], path=_search_path()) is None:
        raise CommandStartError(f"{command[0]}: there is no such program that can be run")


async def run_command(command: Sequence[str], *, settings: Mapping[str, str], stop: asyncio.Event) -> int:
    """Run the command in this terminal, with the settings in its environment.

    Args:
        command: program and arguments; ``python`` is the one that runs this.
        settings: ``SEA_MQ_*`` variables.
        stop: ends the command when set.

    Returns:
        Its exit code, as a shell tells it: 128 + N where signal N ended it.

    Raises:
        CommandStartError: the system does not start it.
    """
    program = shutil.which(command[0], path=_search_path()) or command[0]
    environment = {**os.environ, **settings, "PATH": _search_path()}
    try:
        process = await asyncio.create_subprocess_exec(program, *command[1:], env=environment)
    except OSError as error:
        raise CommandStartError(f"{command[0]}: cannot be started: {error.strerror}") from error
    stopped = asyncio.ensure_future(stop.wait())
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await _end(process, ended)
    code = ended.result()
    return code if code >= 0 else 128 - code


def _search_path() -> str:
    """Return PATH with this Python's own folder first, as in an activated environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
    for seconds, how in ((_LEAVE_SECONDS, signal.SIGTERM), (_END_SECONDS, signal.SIGKILL)):
        if (await asyncio.wait({ended}, timeout=seconds))[0]:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
    await ended
