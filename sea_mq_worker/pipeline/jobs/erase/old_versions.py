"""Delete the older versions of the lake's tables: their files, and their entries in the log.

The log has minima and maxima of columns, among them message IDs, and the conditions of deletions.
"""

from collections.abc import Iterator

import pyarrow.fs as pafs
from deltalake import DeltaTable

from sea_mq_worker.pipeline.lake.storage import filesystem, reachable
from sea_mq_worker.pipeline.lake.table import LakeTable

_WRITING_HOURS_MAX = 1
"""A file that no version contains may be one that a run is writing, until it is this old."""

_LOG = "_delta_log"
_VERSION_DIGITS = 20


def delete_old_versions(table: LakeTable) -> list[str]:
    """Delete all versions but the current one; return the files that no version contains and that stay.

    These files are younger than an hour: a run is writing them, or was killed.

    Raises:
        PipelineError: the lake cannot be read or written.
    """
    if not table.open():
        return []
    with reachable(table.uri):
        current = DeltaTable(table.uri)
        current.vacuum(0, dry_run=False, enforce_retention_duration=False)
        current.vacuum(_WRITING_HOURS_MAX, dry_run=False, enforce_retention_duration=False, full=True)
        current = DeltaTable(table.uri)
        current.create_checkpoint()
        store = filesystem(table.uri)
        for path in _log_files(store, before=current.version()):
            store.delete_file(path)
        unused = DeltaTable(table.uri).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
        return [file.path for file in store.get_file_info(unused) if file.is_file]


def _log_files(store: pafs.FileSystem, *, before: int) -> Iterator[str]:
    for file in store.get_file_info(pafs.FileSelector(_LOG)):
        version = file.base_name[:_VERSION_DIGITS]
        if version.isdecimal() and int(version) < before:
            yield file.path
