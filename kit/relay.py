"""The relay as a process that is started again whenever it ends, as a service manager would."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_PAUSE_SECONDS = 0.5
# A Java machine that has run its shutdown hooks says 143.
_IN_ORDER = frozenset({0, 128 + signal.SIGTERM})


class RelayError(Exception):
    """A command of the description failed; the text ends with what it wrote."""


class Relay:
    """One instance. Its process has a group of its own, so that its children share its fate."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self._command = command
        self._environment = environment
        self._folder = folder
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.ends: list[int] = []
        """Exit codes of the times when it ended by itself."""

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start it, and again whenever it ends by itself."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def kill(self) -> None:
        """End it as the kernel would, without a chance to say anything."""
        await self._let_go()
        self.send(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def stop(self, *, within: float) -> str:
        """Ask it to stop; kill it where it does not. Return what was wrong, or nothing."""
        await self._let_go()
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            return f"still running {within:g} s after SIGTERM"
        finally:
            self.send(signal.SIGKILL)
        return "" if code in _IN_ORDER else f"exit code {code} after SIGTERM"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _launch(self) -> None:
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            self.ends.append(await self._process.wait())
            self.send(signal.SIGKILL)
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._launch()

    async def _let_go(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None


async def run_command(command: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> None:
    """Run a command to its end.

    Raises:
        RelayError: it cannot be run, or ended with another code than 0.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise RelayError(f"{' '.join(command)}: {error}") from error
    written, _ = await process.communicate()
    if process.returncode != 0:
        text = written.decode(errors="replace")[-2000:]
        raise RelayError(f"{' '.join(command)} ended with exit code {process.returncode}:\n{text}")
