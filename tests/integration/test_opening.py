"""Connections to PostgreSQL: to the first of a list of hosts that serves, and not to anything else."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.postgres.pool import connect, fetch
from sea_mq_worker.runtime.addresses import with_password_file
from sea_mq_worker.settings import Settings
from tests.support.proxy import proxied
from tests.support.rows import opened
from tests.support.servers import Database, unique

STATEMENT_SECONDS = 0.3
CLIENT_SECONDS = STATEMENT_SECONDS + 2
POOL = 4
EACH = "SELECT pg_sleep(0.1)"


@asynccontextmanager
async def pool_of(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    async with opened(dsn, size_max=POOL, statement_timeout_seconds=STATEMENT_SECONDS) as pool:
        try:
            yield pool
        finally:
            pool.terminate()  # a silent link would keep it from closing


async def test_the_first_host_of_a_list_that_serves_is_taken_also_among_bracketed_ones(
    database: Database,
) -> None:
    login, _, rest = database.dsn.rpartition("@")
    async with pool_of(f"{login}@[::1]:1,nowhere.invalid:2,{rest}") as pool:
        [row] = await fetch(pool, "SELECT current_database() AS name")
    assert row["name"] == database.name


async def test_the_system_ends_a_connection_whose_peer_is_gone(database: Database) -> None:
    async with pool_of(database.dsn) as pool, pool.acquire() as connection:
        end = connection._transport.get_extra_info("socket")
        if end.family == socket.AF_UNIX:
            pytest.skip("a Unix socket has no network between its ends")
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, expected in (("TCP_USER_TIMEOUT", 10_000), ("TCP_KEEPIDLE", 10)):
            assert end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == expected


async def test_a_database_that_ends_idle_sessions_keeps_those_of_the_worker(database: Database) -> None:
    owner = await asyncpg.connect(database.dsn)
    await owner.execute(f"ALTER DATABASE {database.name} SET idle_session_timeout = '5 s'")
    await owner.close()
    async with pool_of(database.dsn) as pool:
        [row] = await fetch(pool, "SELECT current_setting('idle_session_timeout') AS limit")
    assert row["limit"] == "0"


@pytest.mark.fault("D18")
async def test_a_link_that_fell_silent_costs_one_time_out_for_all_connections(database: Database) -> None:
    async with proxied(database.dsn) as (proxy, dsn), pool_of(dsn) as pool:
        await asyncio.gather(*(fetch(pool, EACH) for _ in range(POOL)))
        assert pool.get_size() == POOL
        proxy.forget()
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="did not answer in time"):
            await fetch(pool, EACH)
        for _ in range(POOL):
            await fetch(pool, EACH)
        assert time.monotonic() - began < 2 * CLIENT_SECONDS


@pytest_asyncio.fixture
async def login(database: Database) -> AsyncIterator[str]:
    """A login of the test's own, whose password is `old`."""
    name = unique("rotated")
    owner = await asyncpg.connect(database.dsn)
    await owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'old' SUPERUSER")
    yield name
    await owner.execute(f"DROP ROLE {name}")
    await owner.close()


async def test_a_new_password_in_the_file_serves_the_next_connection(
    database: Database, login: str, tmp_path: Path
) -> None:
    file = tmp_path / "pass word"
    file.write_text("old\n")
    url = urlsplit(database.dsn)
    plain = url._replace(netloc=f"{login}@{url.netloc.rpartition('@')[2]}").geturl()
    settings = Settings.model_validate({"database_url": plain, "database_password_file": file})
    async with pool_of(settings.database_url.get_secret_value()) as pool:
        await fetch(pool, f"ALTER ROLE {login} PASSWORD 'new'")
        await pool.expire_connections()
        with pytest.raises(ContractError, match="password authentication failed"):
            await fetch(pool, EACH)
        file.write_text("new\n")
        assert len(await fetch(pool, EACH)) == 1


async def test_a_password_file_that_cannot_be_read_is_named(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "missing"
    with pytest.raises(ContractError, match=str(file)):
        async with pool_of(with_password_file(database.dsn, str(file))):
            pass


@pytest.mark.parametrize("mode", ["prefer", "require"])
@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"INFO {}\r\n", b"\x00\xff"])
async def test_a_server_that_is_not_postgresql_is_reported_by_its_response(
    mode: str, greeting: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(ContractError, match=f"answers at 127.0.0.1:{port} is no PostgreSQL") as refused:
            await connect(f"postgresql://u:s3cret@127.0.0.1:{port}/d?sslmode={mode}", {})
    assert str(refused.value).isprintable()
    assert "s3cret" not in str(refused.value)
