"""Run a server as a child process that always ends with its parent.

The server has its own session, so Ctrl-C in the terminal reaches only the parent, which then stops the
server. If the parent is killed, the kernel signals the server (Linux only). The kernel sends this signal when
the *thread* that started the server ends: start servers on a thread that outlives them.
"""

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from sea_mq_worker.embedded import guard

START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.01
LOG_TAIL_LINES = 15

_PORTS = range(15_000, 32_000)
"""Ports below the ranges that Linux and macOS use for outgoing connections. Within those ranges, a client
that keeps dialling a stopped server may get the dialled port as its own and connect to itself."""
_ports = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))
"""All ports in random order, so that servers that start together get different ports."""


class ServerStartError(Exception):
    """An embedded server did not start; the text names its folder and ends with its log."""


@dataclass(frozen=True, slots=True)
class Account:
    """The system user that runs a server."""

    uid: int
    gid: int

    @classmethod
    def own(cls) -> Self:
        return cls(os.geteuid(), os.getegid())


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1 outside the range of outgoing connections.

    This function returns the port to no other process while this process runs.
    """
    return next(filter(_reserve, _ports))


def _reserve(port: int) -> bool:
    """Reserve a free TCP port: the UDP port of the same number stays bound until this process ends."""
    with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as mark:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            mark.bind(("127.0.0.1", port))
        except OSError:
            return False
        mark.detach()
    return True


def guarded(command: Sequence[str], *, account: Account, death_signal: signal.Signals) -> list[str]:
    """Return the command under the guard, which sends it a signal if this process dies (Linux only)."""
    identity = map(str, (os.getpid(), int(death_signal), account.uid, account.gid))
    return [sys.executable, "-I", "-S", guard.__file__, *identity, *command]


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a spawned process to end; kill it and its children if the wait is interrupted."""
    try:
        while process.poll() is None:  # noqa: ASYNC110 - a child can be polled on any event loop
            await asyncio.sleep(POLL_SECONDS)
    except BaseException:
        with suppress(ProcessLookupError, PermissionError):  # it has ended; macOS reports that as the latter
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.wait()


class EmbeddedServer(ABC):
    """A server on a folder; it can be started, stopped and killed any number of times.

    The server keeps its port and data between starts, and reuses a folder that already contains data. It is
    not bound to an event loop.
    """

    name: ClassVar[str]
    crash_signal: ClassVar[signal.Signals]

    def __init__(self, folder: Path, *, port: int) -> None:
        """Create a server; its folder is created at start if missing, and port 0 means any free port."""
        self.folder = folder.resolve()
        self.port = port or free_port()
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> Path:
        """The server's log file; each start appends to it."""
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return any(child.poll() is None for child in self._children)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if not self.running:
            raise ProcessLookupError(f"{self.name} on {self.folder} is not running")
        return self._children[0].pid

    async def start(self) -> None:
        """Start the server and return when it responds; do nothing if it is already running.

        Raises:
            ServerStartError: the server ended, did not respond within `START_SECONDS`, is not installed, or
                its folder cannot be written.
        """
        if self.running:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.log.touch()
        except OSError as error:
            raise ServerStartError(f"{self.folder} cannot be used: {error.strerror}") from error
        logged_before = self.log.stat().st_size
        process = await self._launch()
        self._children = [process]
        try:
            async with asyncio.timeout(START_SECONDS):
                while self.running and not await self._is_ready():  # noqa: ASYNC110 - as above
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            await self.kill()
            raise self._failure(f"did not respond for {START_SECONDS:.0f} s", logged_before) from error
        except BaseException:
            await self.kill()
            raise
        if not self.running:
            raise self._failure(f"ended with exit code {process.returncode}", logged_before)

    async def kill(self) -> None:
        """End the server immediately, as a crash would; the next start recovers."""
        await self._end(self.crash_signal)

    async def __aenter__(self) -> Self:
        """Start the server."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the server, also after an exception."""
        await self._end(signal.SIGINT)

    @abstractmethod
    async def _launch(self) -> subprocess.Popen[bytes]:
        """Prepare the folder and spawn the server."""

    @abstractmethod
    async def _is_ready(self) -> bool:
        """Return whether the server is ready for clients."""

    def _spawn(
        self,
        command: Sequence[str],
        *,
        account: Account | None = None,
        environment: Mapping[str, str] = os.environ,
        death_signal: signal.Signals = signal.SIGINT,
    ) -> subprocess.Popen[bytes]:
        """Run the command under the guard, as this process's user by default; append to the log."""
        with self.log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - a command of this package
                guarded(command, account=account or Account.own(), death_signal=death_signal),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def _end(self, how: signal.Signals) -> None:
        """Signal the server and wait until it has ended; kill it after `STOP_SECONDS`."""
        for child in self._children:
            child.send_signal(how)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await exit_code(child)
            except TimeoutError:
                continue

    def _failure(self, what: str, logged_before: int) -> ServerStartError:
        return ServerStartError(
            f"{self.name} on {self.folder} {what}; the end of {self.log.name}:\n"
            f"{log_tail(self.log, since=logged_before)}"
        )


def log_tail(log: Path, *, since: int) -> str:
    """Return the last lines that were written after the byte offset ``since``."""
    with log.open("rb") as lines:
        lines.seek(since)
        text = lines.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:]) or "(nothing was logged)"
