"""Copy a stream into the lake's bronze table, one range of sequences at a time and each message once.

Only the lake stores progress. The last landed sequence is a watermark that is committed with the files. A run
that is killed, repeated or started twice can therefore neither duplicate nor omit a message. A range with
only deleted messages is committed as well.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.executor_settings import access_options
from sea_mq_worker.pipeline.jobs.land.stream_progress import (
    StreamProgress,
    moment_text,
    nanoseconds,
    progress_of,
)
from sea_mq_worker.pipeline.lake.table import NO_FILES, Files, LakeTable
from sea_mq_worker.pipeline.sources.jetstream.state import message_time, stream_state
from sea_mq_worker.settings import Settings

_PROBED_SEQUENCES = 1000
_PROBES = 5
_ROWS_PER_TASK_MAX = 50_000
_ROWS_PER_TASK_MIN = 10_000
"""Minimum rows per task; fewer rows are read faster than another Python worker starts."""


def find_place(
    settings: Settings, bronze: LakeTable, state: StreamInfo, *, on_loss: Callable[[str], None]
) -> StreamProgress:
    """Return the progress of landing a stream; record in the lake if the stream was recreated or restored.

    Args:
        settings: settings for the connection to NATS.
        bronze: the table.
        state: the stream's current state.
        on_loss: called with a description of missing messages; raises unless loss is accepted.
    """
    stream, created = state.name, nanoseconds(state.created)
    place = progress_of(bronze, stream)
    if place.created != created:
        if place.created:
            on_loss(_made_again(place, state))
        bronze.commit(NO_FILES, *place.made_again(created))
    elif restored := _restored(settings, bronze, place, state):
        on_loss(restored)
        bronze.commit(NO_FILES, *place.restored())
    place = progress_of(bronze, stream)
    if place.landed and place.landed + 1 < state.first_seq:
        on_loss(_removed(place.stream, place.landed + 1, state.first_seq))
    return place


def to_land(bronze: LakeTable, state: StreamInfo) -> StreamProgress:
    """Return the progress of landing a stream, without recording anything."""
    place, created = progress_of(bronze, state.name), nanoseconds(state.created)
    return place if place.created == created else StreamProgress(stream=state.name, created=created)


def land_range(
    spark: SparkSession,
    settings: Settings,
    bronze: LakeTable,
    place: StreamProgress,
    state: StreamInfo,
    *,
    rows_max: int,
    on_loss: Callable[[str], None],
) -> tuple[StreamProgress, Files]:
    """Land at most ``rows_max`` sequences; return the new progress and the written files.

    Raises:
        ConflictError: another run is landing this stream into this lake.
    """
    first = max(place.landed + 1, state.first_seq)
    last = min(state.last_seq, first + rows_max - 1)
    files = NO_FILES
    if first <= last:
        files = _write(spark, bronze, place, created=state.created, first=first, last=last)
    now = stream_state(settings, place.stream)
    if now.created != state.created:
        raise DataLossError(f"{_made_again(place, now)}; this happened during the read: run again")
    if now.last_seq < last:
        raise DataLossError(
            f"stream {place.stream} was restored to an older state during the read: run again"
        )
    # Messages deleted before the first landing do not count as lost.
    if place.landed and now.first_seq > first and files.rows < last - first + 1:
        on_loss(_removed(place.stream, first, min(now.first_seq, last + 1)))
    bronze.commit(files, *place.landed_to(last))
    return replace(place, landed=last), files


def _write(
    spark: SparkSession, bronze: LakeTable, place: StreamProgress, *, created: str, first: int, last: int
) -> Files:
    share = -(-(last - first + 1) // spark.sparkContext.defaultParallelism)
    options = {
        "stream": place.stream,
        "created": created,
        "startSeq": str(first),
        "endSeq": str(last),
        "rowsPerPartition": str(min(max(share, _ROWS_PER_TASK_MIN), _ROWS_PER_TASK_MAX)),
        "failOnDataLoss": "false",  # the caller checks for loss afterwards
        **access_options(),
    }
    rows = spark.read.format("jetstream").options(**options).load()
    return bronze.write(
        rows.withColumns({"incarnation": F.lit(place.incarnation), "date": F.to_date("time")})
    )


def _restored(settings: Settings, bronze: LakeTable, place: StreamProgress, state: StreamInfo) -> str:
    """Describe the evidence that the stream was restored to an older state; empty if there is none."""
    if state.last_seq < place.landed:
        return (
            f"stream {place.stream} ends at sequence {state.last_seq}, but {place.landed} was landed: the "
            f"stream was restored to an older state, and sequences {state.last_seq + 1} to {place.landed} "
            f"exist only in the lake. {_find_lost('land it again as another incarnation')}"
        )
    for seq, moment in _latest(bronze, place, max(state.first_seq, place.landed - _PROBED_SEQUENCES)):
        found = message_time(settings, place.stream, seq)
        if found is None:
            continue
        if found == moment:
            return ""
        return (
            f"stream {place.stream} contains another message at sequence {seq} (stored "
            f"{found.isoformat()}) than was landed (stored {moment.isoformat()}): the stream was restored to "
            f"an older state and has new messages since. {_find_lost('land it again as another incarnation')}"
        )
    return ""


def _latest(bronze: LakeTable, place: StreamProgress, least: int) -> list[tuple[int, datetime]]:
    """Return sequence and time of the last landed messages that the stream should still contain."""
    if least > place.landed:
        return []
    conditions = [
        ("stream", "=", place.stream),
        ("incarnation", "=", place.incarnation),
        ("seq", ">=", least),
    ]
    rows = bronze.peek(conditions, ["seq", "time", "incarnation"])
    mine = pc.equal(rows["incarnation"], place.incarnation)
    ours = rows.filter(pc.and_(mine, pc.greater_equal(rows["seq"], least)))
    last = ours.sort_by([("seq", "descending")]).slice(0, _PROBES)
    return list(zip(last["seq"].to_pylist(), last["time"].to_pylist(), strict=True))


def _made_again(place: StreamProgress, state: StreamInfo) -> str:
    return (
        f"stream {place.stream} was deleted and created again: sequence {place.landed} of the one created at "
        f"{moment_text(place.created)} was landed, this one was created at {state.created}; later messages "
        f"of the old stream are lost. {_find_lost('land the new stream from its beginning')}"
    )


def _removed(stream: str, first: int, behind: int) -> str:
    return (
        f"stream {stream}: sequences {first} to {behind - 1} were removed by the stream's limits or a purge "
        f"before they were landed. Raise max_age and max_bytes of the stream, or land more often. "
        f"{_find_lost(f'continue from sequence {behind}')}"
    )


def _find_lost(then: str) -> str:
    return f"`pipeline reconcile` lists the missing events; use --accept-loss to {then}"
