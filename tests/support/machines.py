"""Machines that lack something that the worker needs."""

import os
from pathlib import Path


def programs_without(name: str, folder: Path) -> str:
    """Return a PATH with all programs of this machine but one; the folder gets links to them."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != name and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)
