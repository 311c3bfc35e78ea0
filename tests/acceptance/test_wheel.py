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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout with the installed hatchling, so without a network."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and all that it requires, which is nothing: pip has no index to look in."""
    folder = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", "--quiet", "--no-index", "--target", str(folder), str(wheel))
    return folder


def run(*arguments: str, cwd: Path | None = None, site: Path | None = None) -> str:
    """Run our Python, with the site before the checkout; return what it printed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd or site,
        env=os.environ | ({"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"} if site else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def relative_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["sql", "streams"])
def test_the_installed_worker_finds_its_files_inside_itself(site: Path, name: str) -> None:
    code = f"from sea_mq_worker.resources import resource_folder; print(resource_folder({name!r}))"
    found = Path(run("-c", code, site=site).strip())
    assert found.is_relative_to(site)
    assert relative_files(found) == relative_files(ROOT / name)


def test_the_installed_worker_answers_on_its_command_line(site: Path) -> None:
    assert "migrate" in run("-m", "sea_mq_worker", "--help", site=site)


def test_the_installed_worker_prints_its_version(site: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run("-m", "sea_mq_worker", "--version", site=site) == f"sea-mq-worker {version}\n"


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in files} == {"sea_mq_worker"}
    assert "sea_mq_worker/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)


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


def bare(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that finds the standard library and the wheel's content alone."""
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=site,
        env=os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


async def test_a_base_install_enqueues_with_the_services_driver_alone(site: Path, database: Database) -> None:
    driver = str(Path(psycopg.__file__).parents[1])
    done = await asyncio.to_thread(bare, site, "-c", PRODUCER, driver, database.dsn)
    assert done.returncode == 0, done.stderr

    connection = await asyncpg.connect(database.dsn)
    try:
        assert str(await connection.fetchval("SELECT id FROM outbox_events")) == done.stdout.strip()
    finally:
        await connection.close()


def test_a_base_install_names_the_extra_that_its_commands_need(site: Path) -> None:
    done = bare(site, "-m", "sea_mq_worker", "depth")

    assert (done.returncode, done.stdout) == (3, "")
    assert "need the extra `worker`" in done.stderr
