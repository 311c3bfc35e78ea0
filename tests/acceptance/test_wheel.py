"""The wheel carries all that the worker needs, and works where there is no checkout."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

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
    """A folder with the wheel's content installed; what it requires comes from our own environment."""
    folder = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
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
