"""A release: built twice alike, signed, with its bill of materials; a distributor can test it."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from tests.support.documents import fresh_checkout
from tools.sbom import bill_of_materials

ROOT = Path(__file__).parents[2]
VERSION = "7.8.0"
REPOSITORY = "https://forge.example/team/worker"
LINK = re.compile(r"(!?)\[[^]]*\]\(([^)#]+)")


def run(*command: str, cwd: Path, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **given)  # type: ignore[call-overload]


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


def test_the_wheel_has_its_bill_of_materials(released: Path) -> None:
    [wheel] = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if ".dist-info/sboms/" in name]
        assert files.read(name).decode() == bill_of_materials()
        assert json.loads(bill_of_materials())["components"]


def test_the_readme_of_a_package_links_to_the_files_of_its_version(released: Path) -> None:
    [wheel] = released.glob("*.whl")
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
