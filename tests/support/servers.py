"""The servers a test session runs against: given by environment, in containers, or embedded.

A server that cannot be had is an error, never a reason to skip.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from tests.support.waiting import eventually

POSTGRES_VARIABLE = "SEA_MQ_TEST_POSTGRES"
NATS_VARIABLE = "SEA_MQ_TEST_NATS"

# A test session's data need not survive the machine.
QUICK = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}

# Streams reserve their max_bytes, and those of all tests stay.
ROOMY = {"jetstream": {"max_file_store": 2**40}}

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2 * 2**30
"""Required free space; the servers of four processes used half a GiB."""


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """Where a PostgreSQL server answers to a superuser."""

    dsn: str

    def dsn_for(self, database: str) -> str:
        """Return the same URL for another database."""
        return urlsplit(self.dsn)._replace(path=f"/{database}").geturl()


@dataclass(frozen=True, slots=True)
class Database:
    """A database of one test."""

    dsn: str
    name: str


def unique(prefix: str) -> str:
    """Return a lower-case name nobody else uses, safe in SQL, subjects and stream names."""
    return f"{prefix}{secrets.token_hex(5)}"


@asynccontextmanager
async def postgres(*, containers: bool) -> AsyncIterator[PostgresAddress]:
    """Provide the session's PostgreSQL."""
    if given := os.environ.get(POSTGRES_VARIABLE):
        yield PostgresAddress(given)
    elif containers:
        async with _postgres_container() as address:
            yield address
    else:
        with _folder() as folder:
            async with EmbeddedPostgres(Path(folder), settings=QUICK) as server:
                yield PostgresAddress(server.dsn)


@asynccontextmanager
async def nats(*, containers: bool) -> AsyncIterator[str]:
    """Provide the URL of the session's nats-server."""
    if given := os.environ.get(NATS_VARIABLE):
        yield given
    elif containers:
        async with _nats_container() as url:
            yield url
    else:
        with _folder() as folder:
            async with EmbeddedNats(Path(folder), config=ROOMY) as server:
                yield server.url


@asynccontextmanager
async def scratch_database(
    server: PostgresAddress, *, prefix: str, template: str = "template1"
) -> AsyncIterator[Database]:
    """Create a database as a copy of the template; drop it afterwards, also with open connections."""
    name = unique(prefix)
    await _execute(server.dsn, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield Database(server.dsn_for(name), name)
    finally:
        await _execute(server.dsn, f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def database_connection(dsn: str, **given: Any) -> AsyncIterator[asyncpg.Connection]:
    """Connect to a database for the length of a block."""
    connection = await asyncpg.connect(dsn, **given)
    try:
        yield connection
    finally:
        await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    async with database_connection(dsn) as connection:
        await connection.execute(statement)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that pytest does not own: it shuts its own against other users, PostgreSQL's too.

    In memory where there is room: to make and drop a database for each test costs a disk up to half of the
    time.
    """
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    return tempfile.TemporaryDirectory(prefix="sea-mq-test-", dir=_MEMORY if roomy else None)


@asynccontextmanager
async def _postgres_container() -> AsyncIterator[PostgresAddress]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - needs Docker
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415

    started = LogMessageWaitStrategy("database system is ready to accept connections")
    container = DockerContainer("postgres:18").with_env("POSTGRES_PASSWORD", "test").with_exposed_ports(5432)
    settings = " ".join(f"-c {name}={value}" for name, value in QUICK.items())
    with container.with_command(f"postgres {settings}").waiting_for(started) as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(5432)
        address = PostgresAddress(f"postgresql://postgres:test@{host}:{port}/postgres")
        await eventually(lambda: _answers(address.dsn), within=60, what="PostgreSQL after its set-up")
        yield address


async def _answers(dsn: str) -> bool:
    """Over TCP, since the image sets itself up with a server that listens on a socket only."""
    try:
        await _execute(dsn, "SELECT 1")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    return True


@asynccontextmanager
async def _nats_container() -> AsyncIterator[str]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - needs Docker
    from testcontainers.core.wait_strategies import HttpWaitStrategy  # noqa: PLC0415

    container = DockerContainer("nats:2").with_command("-js -m 8222").with_exposed_ports(4222, 8222)
    with container.waiting_for(HttpWaitStrategy(8222, "/healthz")) as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(4222)
        yield f"nats://{host}:{port}"
