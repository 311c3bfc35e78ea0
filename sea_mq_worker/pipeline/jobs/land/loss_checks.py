"""Detect messages that a stream lost before they were landed: removed, or recreated or restored streams."""

from collections.abc import Callable

from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.jobs.land.stream_progress import (
    StreamProgress,
    incarnations,
    moment_text,
    nanoseconds,
    progress_of,
)
from sea_mq_worker.pipeline.lake.table import NO_FILES, LakeTable
from sea_mq_worker.pipeline.sources.jetstream.state import message_time
from sea_mq_worker.settings import Settings

_PROBED_SEQUENCES = 1000
_PROBES = 5
_FIND_LOST = "`pipeline reconcile` lists the missing events; use --accept-loss to"
_LAND_AGAIN = f"{_FIND_LOST} land it again as another incarnation"


def current_progress(
    settings: Settings, bronze: LakeTable, state: StreamInfo, *, on_loss: Callable[[str], None]
) -> StreamProgress:
    """Return the progress of landing a stream; record in the lake if the stream was recreated or restored.

    ``on_loss`` is called with a description of missing messages, and raises unless loss is accepted.
    """
    stream, created = state.name, nanoseconds(state.created)
    progress = progress_of(bronze, stream)
    if progress.created != created:
        if progress.created:
            on_loss(_recreated_text(progress, state))
        bronze.commit(NO_FILES, *progress.recreated(created, incarnations(bronze, stream)))
        progress = progress_of(bronze, stream)  # a backup of a former stream of this name was landed before
    if restored := _restored(settings, bronze, progress, state):
        on_loss(restored)
        bronze.commit(NO_FILES, *progress.restored())
        progress = progress_of(bronze, stream)
    if progress.landed and progress.landed + 1 < state.first_seq:
        on_loss(_removed_text(progress.stream, progress.landed + 1, state.first_seq))
    return progress


def check_after_read(
    progress: StreamProgress,
    before: StreamInfo,
    now: StreamInfo,
    sequences: range,
    *,
    rows: int,
    on_loss: Callable[[str], None],
) -> None:
    """Check that a stream did not change while sequences after the landed ones, with ``rows``, were read.

    Raises:
        DataLossError: the stream was recreated or restored.
    """
    if now.created != before.created:
        raise DataLossError(f"{_recreated_text(progress, now)}; this happened during the read: run again")
    if now.last_seq < sequences.stop - 1:
        raise DataLossError(
            f"stream {progress.stream} was restored to an older state during the read: run again"
        )
    # Messages deleted before the first landing do not count as lost.
    if progress.landed and now.first_seq > sequences.start and rows < len(sequences):
        on_loss(_removed_text(progress.stream, sequences.start, min(now.first_seq, sequences.stop)))


def _restored(settings: Settings, bronze: LakeTable, progress: StreamProgress, state: StreamInfo) -> str:
    """Describe the evidence that the stream was restored to an older state; empty if there is none."""
    if state.last_seq < progress.landed:
        return (
            f"stream {progress.stream} ends at sequence {state.last_seq}, but {progress.landed} was landed: "
            f"it was restored to an older state, and sequences {state.last_seq + 1} to {progress.landed} "
            f"exist only in the lake. {_LAND_AGAIN}"
        )
    first = max(state.first_seq, progress.landed - _PROBED_SEQUENCES)
    rows = bronze.peek(progress.rows(first - 1, progress.landed), ["seq", "time"])
    for row in rows.sort_by([("seq", "descending")]).slice(0, _PROBES).to_pylist():
        seq, moment = row["seq"], row["time"]
        found = message_time(settings, progress.stream, seq)
        if found is None:
            continue
        if found == moment:
            return ""
        return (
            f"stream {progress.stream} contains another message at sequence {seq} (stored "
            f"{found.isoformat()}) than was landed (stored {moment.isoformat()}): the stream was restored to "
            f"an older state and has new messages since. {_LAND_AGAIN}"
        )
    return ""


def _recreated_text(progress: StreamProgress, state: StreamInfo) -> str:
    return (
        f"stream {progress.stream} was deleted and created again: sequence {progress.landed} of the one "
        f"created at {moment_text(progress.created)} was landed, this one was created at {state.created}; "
        f"later messages of the old stream are lost. {_FIND_LOST} land the new stream from its beginning"
    )


def _removed_text(stream: str, first: int, behind: int) -> str:
    return (
        f"stream {stream}: sequences {first} to {behind - 1} were removed by the stream's limits or a purge "
        f"before they were landed. Raise max_age and max_bytes of the stream, or land more often. "
        f"{_FIND_LOST} continue from sequence {behind}"
    )
