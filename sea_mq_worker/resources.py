"""Finds the files of ``sql/`` and ``streams/``: inside the installed wheel, or in the checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def resource_folder(name: str) -> Path:
    """Return the folder ``sql`` or ``streams``."""
    packaged = _PACKAGE / "_files" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
