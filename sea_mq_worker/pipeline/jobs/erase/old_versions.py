"""Delete the older versions of the lake's tables: their files, and their entries in the log.

The log has minima and maxima of columns, among them message IDs, and the conditions of deletions.
"""

from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from sea_mq_worker.pipeline.jobs.typed.typed_tables import tables_of
from sea_mq_worker.pipeline.lake.schemas import SCHEMAS
from sea_mq_worker.pipeline.lake.storage import filesystem, reachable
from sea_mq_worker.pipeline.lake.table import LakeTable

_WRITING_HOURS_MAX = 1
"""A file that no version contains may be one that a run is writing, until it is this old."""

_VERSION_DIGITS = 20


def delete_old_versions(lake: str) -> tuple[str, ...]:
    """Delete all versions but the current ones; return the files that no version contains and that stay.

    These files are younger than an hour: a run is writing them, or was killed.

    Raises:
        PipelineError: the lake cannot be read or written.
    """
    tables = [LakeTable(lake, schema) for schema in (*SCHEMAS, *tables_of(lake))]
    return tuple(f"{table.uri}/{path}" for table in tables if table.open() for path in _delete(table.uri))


def _delete(uri: str) -> list[str]:
    with reachable(uri):
        store, table = filesystem(uri), DeltaTable(uri)
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        table.vacuum(_WRITING_HOURS_MAX, dry_run=False, enforce_retention_duration=False, full=True)
        table = DeltaTable(uri)
        table.create_checkpoint()
        for file in store.get_file_info(FileSelector("_delta_log")):
            version = file.base_name[:_VERSION_DIGITS]
            if version.isdecimal() and int(version) < table.version():
                store.delete_file(file.path)
        unused = DeltaTable(uri).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
        return [file.path for file in store.get_file_info(unused) if file.is_file]
