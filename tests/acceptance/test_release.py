"""A release: built twice alike, signed, with its bill of materials; it works where there is no checkout."""

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from packaging.metadata import Metadata

from tests.support.documents import fresh_checkout
from tests.support.servers import Database
from tools.sbom import bill_of_materials

ROOT = Path(__file__).parents[2]
VERSION = "7.8.0"
REPOSITORY = "https://forge.example/team/worker"
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
LINK = re.compile(r"(!?)\[[^]]*\]\(([^)#]+)")


def run(*command: str, cwd: Path, **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **given)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this one, not ready for a release."""
    folder = fresh_checkout(tmp_path_factory.mktemp("checkout"))
    about = folder / "pyproject.toml"
    about.write_text(
        re.sub(r'^version = ".*"', f'version = "{VERSION}"', about.read_text(), flags=re.MULTILINE)
    )
    run("git", "init", "-q", cwd=folder)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    run("git", "add", "-A", cwd=folder)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    assert run("git", *author, "commit", "-q", "-m", "all", cwd=folder).returncode == 0


def release(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "tools.release", "--repository", REPOSITORY, *options, cwd=folder)


@pytest.fixture(scope="module")
def released(checkout: Path) -> Path:
    """The folder of a release that was signed."""
    unready = release(checkout)
    assert unready.returncode == 1
    assert "CHANGELOG.md has no section [7.8.0]" in unready.stderr
    assert "tests/releases has no dump of 7.8" in unready.stderr
    changes = checkout / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("\n## ", f"\n## [{VERSION}] - 2027-01-01\n\n## ", 1))
    (checkout / "tests" / "releases" / "7.8.sql").write_text("SELECT 1;")
    assert "changes are not committed" in release(checkout).stderr
    commit(checkout)
    key = checkout.parent / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key), cwd=checkout)
    done = release(checkout, "--sign-with", str(key))
    assert done.returncode == 0, done.stderr
    assert f"git tag --sign v{VERSION}" in done.stdout
    return checkout / "dist"


def test_the_sums_of_a_release_are_right_and_signed(released: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (released / "SHA256SUMS").read_text().splitlines())
    packages = [file for file in released.iterdir() if file.suffix in {".whl", ".gz"}]
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in packages}
    assert len(sums) == 2
    checked = ("ssh-keygen", "-Y", "check-novalidate", "-n", "file", "-s", str(released / "SHA256SUMS.sig"))
    assert run(*checked, cwd=released, input=(released / "SHA256SUMS").read_text()).returncode == 0


@pytest.fixture(scope="module")
def wheel(released: Path) -> Path:
    [built] = released.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and all that it requires, which is nothing: pip has no index to look in."""
    folder = tmp_path_factory.mktemp("site")
    install = ("pip", "install", "--quiet", "--no-index", "--target", str(folder), str(wheel))
    assert run(sys.executable, "-m", *install, cwd=folder).returncode == 0
    return folder


def installed(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the wheel's packages before the checkout's."""
    here = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    return run(sys.executable, *arguments, cwd=site, env=os.environ | here)


def printed(site: Path, *arguments: str) -> str:
    done = installed(site, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_its_bill_of_materials(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if ".dist-info/sboms/" in name]
        assert files.read(name).decode() == bill_of_materials()
        assert json.loads(bill_of_materials())["components"]


def test_the_readme_of_a_package_links_to_the_files_of_its_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        about = Metadata.from_email(files.read(name), validate=True)
    assert (about.project_urls or {})["Repository"] == REPOSITORY
    links = LINK.findall(about.description or "")
    assert len(links) == len(LINK.findall((ROOT / "README.md").read_text())) > 0
    for image, link in links:
        file = link.removeprefix(f"{REPOSITORY}/{'raw' if image else 'blob'}/v{VERSION}/")
        assert (ROOT / file).is_file(), link


def test_a_distributor_can_run_tests_from_the_sdist(released: Path, tmp_path: Path) -> None:
    [sdist] = released.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    kept = ("tests", "docs", "sql", "tools", "requirements")
    committed = run("git", "ls-files", *kept, cwd=released.parent).stdout.splitlines()
    assert [name for name in committed if not (source / name).is_file()] == []
    tested = run(sys.executable, "-m", "pytest", "-q", "tests/unit/test_settings.py", cwd=source)
    assert tested.returncode == 0, tested.stdout


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in files} == {"sea_mq_worker"}
    assert "sea_mq_worker/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)


@pytest.mark.parametrize("name", ["sql", "streams"])
def test_the_installed_worker_finds_its_files_inside_itself(site: Path, name: str) -> None:
    code = f"from sea_mq_worker.resources import resource_folder; print(resource_folder({name!r}))"
    found = Path(printed(site, "-c", code).strip())
    assert found.is_relative_to(site)
    assert relative_files(found) == relative_files(ROOT / name)


def relative_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_installed_worker_prints_its_commands_and_its_version(site: Path) -> None:
    assert printed(site, "-m", "sea_mq_worker", "--version") == f"sea-mq-worker {VERSION}\n"
    assert "migrate" in printed(site, "-m", "sea_mq_worker", "--help")


async def test_a_base_install_enqueues_with_the_services_driver_alone(site: Path, database: Database) -> None:
    driver = str(Path(psycopg.__file__).parents[1])
    event_id = await asyncio.to_thread(printed, site, "-S", "-c", PRODUCER, driver, database.dsn)
    connection = await asyncpg.connect(database.dsn)
    try:
        assert str(await connection.fetchval("SELECT id FROM outbox_events")) == event_id.strip()
    finally:
        await connection.close()


def test_a_base_install_names_the_extra_that_its_commands_need(site: Path) -> None:
    done = installed(site, "-S", "-m", "sea_mq_worker", "depth")
    assert (done.returncode, done.stdout) == (3, "")
    assert "need the extra `worker`" in done.stderr
    assert printed(site, "-S", "-m", "sea_mq_worker", "-V").startswith("sea-mq-worker ")
