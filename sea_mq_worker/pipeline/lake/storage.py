"""Storage of a lake: a folder, or an object store that delta-rs supports (s3://, gs://, abfs://).

Credentials of object stores come from the environment variables of each store's own tools (``AWS_*`` and so
on), in the driver and in the executors; they are never an option. On a cluster, all nodes must share the
folder.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError

from sea_mq_worker.pipeline.errors import PipelineError


def table_uri(lake: str, table: str) -> str:
    """Return the address of a table of the lake; a folder's address is an absolute path without a scheme.

    Raises:
        PipelineError: delta-rs would decode the folder's name to another one.
    """
    parts = urlsplit(lake)
    if parts.scheme and parts.scheme != "file":
        return f"{lake.rstrip('/')}/{table}"
    folder = Path(unquote(parts.path) if parts.scheme else lake)
    path = str(folder.expanduser().absolute() / table)
    if unquote(path) != path:
        raise PipelineError(f"{path}: a lake's path cannot have a percent sign and two digits; rename it")
    return path


def is_local(uri: str) -> bool:
    """Return whether a table's address is a folder."""
    return "://" not in uri


def filesystem(uri: str) -> pafs.FileSystem:
    """Return the table's folder as a file system, its paths relative to the table.

    Raises:
        PipelineError: the folder cannot be created, or the object store is unknown.
    """
    with reachable(uri):
        if is_local(uri):
            Path(uri).mkdir(parents=True, exist_ok=True)
            return pafs.SubTreeFileSystem(uri, pafs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - only for object stores

        return pafs.PyFileSystem(DeltaStorageHandler(uri))


def check_space(lake: str, size_bytes: int) -> None:
    """Check that a lake in a folder has free space for files of this size.

    Raises:
        PipelineError: there is less.
    """
    uri = table_uri(lake, "")
    if is_local(uri):
        with reachable(uri):
            folder = next(each for each in (Path(uri), *Path(uri).parents) if each.exists())
            free = shutil.disk_usage(folder).free
        if free < size_bytes:
            raise PipelineError(
                f"{lake}: has {free >> 20:,} MiB of free space, {size_bytes >> 20:,} MiB are needed:"
                " free some, or use another disk"
            )


def make_durable(uri: str, path: str) -> None:
    """Sync a file of the table and its folders to disk; object stores are durable once they acknowledge.

    Raises:
        OSError: the file or a folder cannot be synced.
    """
    file = Path(uri) / path
    for each in (file, *file.parents) if is_local(uri) else ():
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if each == Path(uri).parent:
            return


@contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Translate storage errors of a block into one line.

    Raises:
        PipelineError: replaces the block's OSError or DeltaError.
    """
    try:
        yield
    except (OSError, DeltaError) as error:
        text = " ".join(str(error).replace("\x1b[31m↳\x1b[0m", "").split())
        raise PipelineError(f"{uri} cannot be read or written: {text}") from error
