"""Where a lake is: a folder, or an object store that delta-rs knows (s3://, gs://, abfs://).

Credentials of object stores come from the environment, as each store's own tools take them (``AWS_*`` and so
on), on the driver and on the executors; they are never an option.
"""

from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.fs as pafs


def table_uri(lake: str, table: str) -> str:
    """Return the address of a table of the lake."""
    return f"{lake.rstrip('/')}/{table}"


def is_local(uri: str) -> bool:
    """Tell whether the JVM can open it as it is."""
    return urlsplit(uri).scheme in {"", "file"}


def filesystem(uri: str) -> pafs.FileSystem:
    """Return the table's folder as a file system, its paths relative to the table."""
    if is_local(uri):
        root = Path(urlsplit(uri).path)
        root.mkdir(parents=True, exist_ok=True)
        return pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - only for object stores

    return pafs.PyFileSystem(DeltaStorageHandler(uri))
