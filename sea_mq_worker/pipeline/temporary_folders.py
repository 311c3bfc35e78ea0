"""Temporary folders of sessions; the next session deletes those that a killed process left behind."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "sea_mq_worker-spark-"
_AGE_SECONDS_MIN = 3600.0
"""A younger folder may belong to a process that has not locked it yet."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder below TMPDIR and delete it afterwards."""
    _delete_abandoned()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        Path(folder, "lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(folder)


def _delete_abandoned() -> None:
    """Delete this user's old folders that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, or another process deletes it
            about = folder.stat()
            if about.st_uid == os.getuid() and about.st_mtime < time.time() - _AGE_SECONDS_MIN:
                with (folder / "lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
