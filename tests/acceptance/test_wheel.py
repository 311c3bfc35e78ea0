"""The wheel carries all that producer and worker need, and works where there is no checkout."""

import asyncio
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.support.servers import Database

ROOT = Path(__file__).parents[2]
PRODUCER = """
import sys
from sea_mq_worker.producer import Event, enqueue_sync
sys.path.append(sys.argv[1])
import psycopg
event = Event(aggregate_type="order", aggregate_id="1", event_type="order.paid", payload={"order": 1})
with psycopg.connect(sys.argv[2]) as connection:
    print(*enqueue_sync(connection, event))
"""
"""Imports the producer before any other package can be found."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run our Python in a folder, whose packages go before the checkout."""
    here = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=os.environ | here, capture_output=True, text=True, check=False,
    )  # fmt: skip


def printed(folder: Path, *arguments: str) -> str:
    done = run(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout with the installed hatchling, so without a network."""
    folder = tmp_path_factory.mktemp("dist")
    printed(ROOT, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and all that it requires, which is nothing: pip has no index to look in."""
    folder = tmp_path_factory.mktemp("site")
    printed(ROOT, "-m", "pip", "install", "--quiet", "--no-index", "--target", str(folder), str(wheel))
    return folder


def relative_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["sql", "streams"])
def test_the_installed_worker_finds_its_files_inside_itself(site: Path, name: str) -> None:
    code = f"from sea_mq_worker.resources import resource_folder; print(resource_folder({name!r}))"
    found = Path(printed(site, "-c", code).strip())
    assert found.is_relative_to(site)
    assert relative_files(found) == relative_files(ROOT / name)


def test_the_installed_worker_prints_its_commands_and_its_version(site: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert printed(site, "-m", "sea_mq_worker", "--version") == f"sea-mq-worker {version}\n"
    assert "migrate" in printed(site, "-m", "sea_mq_worker", "--help")


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in files} == {"sea_mq_worker"}
    assert "sea_mq_worker/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)


async def test_a_base_install_enqueues_with_the_services_driver_alone(site: Path, database: Database) -> None:
    driver = str(Path(psycopg.__file__).parents[1])
    event_id = await asyncio.to_thread(printed, site, "-S", "-c", PRODUCER, driver, database.dsn)

    connection = await asyncpg.connect(database.dsn)
    try:
        assert str(await connection.fetchval("SELECT id FROM outbox_events")) == event_id.strip()
    finally:
        await connection.close()


def test_a_base_install_names_the_extra_that_its_commands_need(site: Path) -> None:
    done = run(site, "-S", "-m", "sea_mq_worker", "depth")

    assert (done.returncode, done.stdout) == (3, "")
    assert "need the extra `worker`" in done.stderr
    assert printed(site, "-S", "-m", "sea_mq_worker", "-V").startswith("sea-mq-worker ")
