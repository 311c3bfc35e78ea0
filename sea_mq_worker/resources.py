"""Finds the files of ``sql/`` and ``streams/``, in the installed wheel or in the checkout; names installs."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def files_in(folder: Path, suffix: str) -> list[Path]:
    """Return a folder's files with a suffix, in order.

    From Python 3.13 on, `Path.glob` would return nothing for a folder that cannot be opened now.

    Raises:
        OSError: the folder cannot be listed.
    """
    return sorted(file for file in folder.iterdir() if file.suffix == suffix)


def resource_folder(name: str) -> Path:
    """Return the folder ``sql`` or ``streams``."""
    packaged = _PACKAGE / "_files" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def install_hint(extras: str) -> str:
    """Return the commands that install extras from a checkout or a built wheel."""
    wheel = "./sea_mq_worker-VERSION-py3-none-any.whl"
    return f"pip install '.[{extras}]' in a checkout, or pip install '{wheel}[{extras}]' from a wheel"
