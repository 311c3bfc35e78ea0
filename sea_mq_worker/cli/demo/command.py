"""Run a command of the user against the servers of ``dev``."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sea_mq_worker.embedded.process import Account, guarded

_LEAVE_SECONDS = 3.0
"""Time for the command to end by itself before it gets SIGTERM. Ctrl-C reaches the command as well."""
_END_SECONDS = 30.0
"""Time for the command to end after SIGTERM before it gets SIGKILL."""


class CommandStartError(Exception):
    """The command cannot be started; the text states the reason."""


def check_command(command: Sequence[str]) -> None:
    """Check that the program exists, before anything else is started.

    Raises:
        CommandStartError: the program was not found.
    """
    if shutil.which(command[0], path=_search_path()) is None:
        raise CommandStartError(f"{command[0]}: program not found on PATH, or not executable")


async def run_command(command: Sequence[str], *, settings: Mapping[str, str], stop: asyncio.Event) -> int:
    """Run the command in this terminal, with the settings in its environment.

    Args:
        command: program and arguments; ``python`` is the interpreter of this process.
        settings: ``SEA_MQ_*`` variables.
        stop: ends the command when set.

    Returns:
        The command's exit code as a shell reports it: 128 + N if signal N ended the command.
    """
    program = shutil.which(command[0], path=_search_path()) or command[0]
    environment = {**os.environ, **settings, "PATH": _search_path()}
    guarded_command = guarded([program, *command[1:]], account=Account.own(), death_signal=signal.SIGTERM)
    process = await asyncio.create_subprocess_exec(*guarded_command, env=environment)
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
    """Return PATH with the folder of this Python first, as in an activated virtual environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
    for seconds, how in ((_LEAVE_SECONDS, signal.SIGTERM), (_END_SECONDS, signal.SIGKILL)):
        if (await asyncio.wait({ended}, timeout=seconds))[0]:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
    await ended
