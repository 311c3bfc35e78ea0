"""The worker reports its start to the service manager that started it."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sea_mq_worker.runtime.supervisor import ExitCode
from tests.support.servers import Database, unique
from tests.support.worker import Deployment, apply_streams, deployment, running

READY_SECONDS = 30.0


@pytest.fixture
async def target(database: Database, nats_url: str, names: str, tmp_path: Path) -> Deployment:
    made = deployment(
        context=names, database_url=database.dsn, nats_url=nats_url, handler_url="http://127.0.0.1:1/"
    )
    await apply_streams(made, tmp_path / "streams")
    return made


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address that a worker is given, and the socket that receives there."""
    address = f"@{unique('notify')}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address.replace("@", "\0"))
        receiver.settimeout(READY_SECONDS)
        yield address, receiver


async def test_a_worker_reports_that_it_is_ready(
    target: Deployment, manager: tuple[str, socket.socket], tmp_path: Path
) -> None:
    address, receiver = manager
    async with running(with_socket(target, address), tmp_path / "worker.log") as worker:
        assert await asyncio.to_thread(receiver.recv, 100) == b"READY=1"
        await worker.ready()
        await worker.stopped()


async def test_a_worker_without_its_service_manager_ends(target: Deployment, tmp_path: Path) -> None:
    nowhere = with_socket(target, str(tmp_path / "nothing"))
    async with running(nowhere, tmp_path / "worker.log") as worker:
        assert await worker.ended() == ExitCode.USAGE
        assert "NOTIFY_SOCKET: No such file" in worker.written


def with_socket(target: Deployment, address: str) -> Deployment:
    return replace(target, environment={**target.environment, "NOTIFY_SOCKET": address})


async def test_the_log_names_an_ipv6_address_as_a_browser_opens_it(
    target: Deployment, tmp_path: Path
) -> None:
    async with running(target, tmp_path / "log", admin_host="::1") as worker:
        await worker.tells("http://[::1]:")
