"""Build, check and sign a release; print what to publish. Nothing leaves this machine.

    python -m tools.release --repository https://github.com/OWNER/NAME --sign-with ~/.ssh/id_ed25519

Wheel and sdist are built twice from the last commit, in different folders and time zones. Both builds must be
equal. Their metadata name the repository, and their README links to the files of the version's tag there.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, cast

from packaging.metadata import Metadata

_ROOT = Path(__file__).parents[1]
_SUMS = "SHA256SUMS"


def main() -> None:
    """Release the version of pyproject.toml."""
    options = _options()
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if problems := list(_problems(version)):
        sys.exit("\n".join(f"not ready: {problem}" for problem in problems))
    built = build(options.folder, partial(link_to, options.repository.rstrip("/"), version))
    _check_metadata(built)
    sums = "".join(f"{_sha256(file)}  {file.name}\n" for file in built)
    (options.folder / _SUMS).write_text(sums, encoding="utf-8")
    published = [*built, options.folder / _SUMS]
    if options.sign_with:
        signed = options.folder / f"{_SUMS}.sig"
        signed.unlink(missing_ok=True)
        sign = ("ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", options.sign_with)
        _run(*sign, str(options.folder / _SUMS))
        published.append(signed)
    sys.stdout.write(f"{sums}\nPublish:\n" + "".join(f"  {step}\n" for step in _steps(version, published)))


def build(folder: Path, prepare: Callable[[Path], None]) -> Sequence[Path]:
    """Build wheel and sdist of the last commit, whose files are prepared, into the folder.

    Raises:
        SystemExit: two builds differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        builds = [_build(Path(first), "UTC", prepare), _build(Path(second), "Asia/Tokyo", prepare)]
        one, other = ({file.name: _sha256(file) for file in files} for files in builds)
        if one != other:
            sys.exit(f"two builds differ: {one} and {other}")
        return [Path(shutil.move(file, folder / file.name)) for file in builds[0]]


def link_to(repository: str, version: str, source: Path) -> None:
    """Write the repository's addresses into the metadata, and make the README's links absolute.

    An index shows the README without the files beside it.
    """
    shown, raw = (f"{repository}/{kind}/v{version}/" for kind in ("blob", "raw"))
    readme = source / "README.md"
    text = re.sub(r"(!\[[^]]*\]\()(?=[\w.])(?!\w+:)", rf"\g<1>{raw}", readme.read_text(encoding="utf-8"))
    readme.write_text(re.sub(r"(\]\()(?=[\w.])(?!\w+:)", rf"\g<1>{shown}", text), encoding="utf-8")
    urls = {
        "Repository": repository,
        "Documentation": f"{shown}README.md#where-to-go",
        "Changelog": f"{shown}CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    with (source / "pyproject.toml").open("a", encoding="utf-8") as about:
        about.write("\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items()))


def _check_metadata(built: Sequence[Path]) -> None:
    """Check the metadata strictly, as an index does.

    Raises:
        ExceptionGroup: what is wrong with each field.
    """
    for file in built:
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
                found = wheel.read(name)
        else:
            with tarfile.open(file) as sdist:
                found = cast(
                    "IO[bytes]", sdist.extractfile(f"{file.name.removesuffix('.tar.gz')}/PKG-INFO")
                ).read()
        Metadata.from_email(found, validate=True)


def _build(folder: Path, zone: str, prepare: Callable[[Path], None]) -> list[Path]:
    source, target = folder / f"source-{zone.lower().replace('/', '-')}", folder / "dist"
    source.mkdir()
    archive = subprocess.run(("git", "archive", "HEAD"), cwd=_ROOT, check=True, capture_output=True).stdout
    subprocess.run(("tar", "-x", "-C", str(source)), input=archive, check=True)
    prepare(source)
    at = _run("git", "log", "-1", "--format=%ct")
    command = (sys.executable, "-m", "hatchling", "build", "-d", str(target))
    environment = os.environ | {"SOURCE_DATE_EPOCH": at, "TZ": zone}
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    return sorted(target.iterdir())


def _problems(version: str) -> Iterator[str]:
    if changed := _run("git", "status", "--porcelain"):
        yield f"changes are not committed: {changed.splitlines()[0].strip()}"
    if _run("git", "tag", "--list", f"v{version}"):
        yield f"the tag v{version} exists"
    if not re.search(rf"^## \[{re.escape(version)}\]", (_ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no section [{version}]"
    minor = version.rpartition(".")[0]
    if not (_ROOT / "tests" / "releases" / f"{minor}.sql").is_file():
        yield f"tests/releases has no dump of {minor}: run `python -m tests.releases {minor}`"


def _steps(version: str, published: Sequence[Path]) -> Iterator[str]:
    files = [str(file) for file in published]
    packages = [file for file in files if file.endswith((".whl", ".tar.gz"))]
    yield f"git tag --sign v{version} --message 'Version {version}' && git push origin v{version}"
    yield f"uv publish {' '.join(packages)}"
    [base] = re.findall(r"^ARG PYTHON_IMAGE=(.+)$", (_ROOT / "Dockerfile").read_text(), re.MULTILINE)
    digest = f"$(docker buildx imagetools inspect {base} --format '{{{{.Manifest.Digest}}}}')"
    yield (
        f"docker build --build-arg PYTHON_IMAGE={base}@{digest} --tag REGISTRY/sea-mq-worker:{version} . "
        f"&& docker push REGISTRY/sea-mq-worker:{version}"
    )
    yield f"attach to the release v{version}: {' '.join(files)}"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(*command: str) -> str:
    return subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--folder", type=Path, default=_ROOT / "dist", help="where the files go (dist)")
    parser.add_argument(
        "--repository",
        metavar="URL",
        required=True,
        help="address of the repository, which serves files as /blob/TAG/FILE and /raw/TAG/FILE",
    )
    parser.add_argument("--sign-with", metavar="KEY", help="SSH key that signs the SHA-256 sums (none)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
