"""Where a stream's landing continues, and what of it was lost: known from bronze's rows and the stream alone.

A stream that was deleted and created again, or restored to an older state, uses the same sequences for other
messages. Each such state of a stream is an incarnation. Its name is the stream's creation time, followed by
``#n`` after the n-th restore.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as fn

from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.pipeline.jetstream.state import message_time, stream_state
from sea_mq_worker.pipeline.lake import BRONZE, Lake
from sea_mq_worker.settings import Settings

_NEAR = 1_000_000
"""Sequences before a stream's end among which the last landed one is searched first."""

_PROBED_SEQUENCES = 1000
_PROBES = 5
_FIND_LOST = "`pipeline reconcile` lists the missing events; use --accept-loss to"
_LAND_AGAIN = f"{_FIND_LOST} land it again as another incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the landing of a stream continues.

    Attributes:
        stream: the stream's name.
        created: its creation time as the server writes it.
        incarnation: the present incarnation's name.
        landed: the last landed sequence of this incarnation; 0: none.
        first: the first sequence of the stream.
        last: the last sequence of the stream.
        row_bytes: mean size of a message.
    """

    stream: str
    created: str
    incarnation: str
    landed: int
    first: int
    last: int
    row_bytes: float


def find_place(lake: Lake, settings: Settings, stream: str, *, on_loss: Callable[[str], None]) -> Place:
    """Compare a stream with what was landed of it.

    ``on_loss`` is called with a description of missing messages, and raises unless loss is accepted.

    Raises:
        BrokerUnavailableError: there is no answer now.
        ContractError: the stream is missing, or the settings do not let the pipeline ask.
    """
    state = stream_state(settings, stream)
    created = moment_text(state.created)
    landed = _landed(lake, state, created)
    restores = {_restores(name): name for name in landed if name.partition("#")[0] == created}
    incarnation = restores[max(restores)] if restores else created
    last = landed.get(incarnation, 0)
    if landed and not restores:
        former = max(landed)
        on_loss(_recreated_text(state, former.partition("#")[0], landed[former]))
    if last and (restored := _restored(lake, settings, state, incarnation, last)):
        on_loss(restored)
        incarnation, last = f"{created}#{max(restores) + 1}", 0
    if last and last + 1 < state.first_seq:
        on_loss(_removed_text(stream, last + 1, state.first_seq))
    return Place(
        stream=stream,
        created=state.created,
        incarnation=incarnation,
        landed=last,
        first=state.first_seq,
        last=state.last_seq,
        row_bytes=state.size_bytes / max(state.messages, 1),
    )


def last_landed(lake: Lake, stream: str, incarnation: str, *, at_least: int = 0) -> int:
    """Return the last landed sequence of an incarnation; 0: none. Files before ``at_least`` are not read."""
    mine = (fn.col("stream") == stream) & (fn.col("incarnation") == incarnation) & (fn.col("seq") >= at_least)
    [[last]] = lake.read(BRONZE.name).where(mine).agg(fn.max("seq")).collect()
    return int(last or 0)


def moment_text(created: str) -> str:
    """Return the server's time without trailing zeros."""
    whole, _, fraction = created.removesuffix("Z").partition(".")
    return f"{whole}.{fraction}".rstrip("0").rstrip(".") + "Z" if fraction else created


def _landed(lake: Lake, state: StreamInfo, created: str) -> dict[str, int]:
    """Return the last landed sequence of each incarnation of a stream's name."""
    if not lake.exists(BRONZE.name):
        return {}
    mine = lake.read(BRONZE.name).where(fn.col("stream") == state.name)
    # Files' statistics answer both questions of a stream that is landed often and was never made again.
    if mine.where(fn.col("incarnation") != created).isEmpty():
        near = last_landed(lake, state.name, created, at_least=state.last_seq - _NEAR)
        if last := near or last_landed(lake, state.name, created):
            return {created: last}
        return {}
    return dict(mine.groupBy("incarnation").agg(fn.max("seq")).collect())


def _restores(incarnation: str) -> int:
    return int(incarnation.partition("#")[2] or 0)


def _restored(lake: Lake, settings: Settings, state: StreamInfo, incarnation: str, landed: int) -> str:
    """Describe the evidence that the stream was restored to an older state; empty if there is none."""
    if state.last_seq < landed:
        return (
            f"stream {state.name} ends at sequence {state.last_seq}, but {landed} was landed: it was "
            f"restored to an older state, and sequences {state.last_seq + 1} to {landed} exist only in the "
            f"lake. {_LAND_AGAIN}"
        )
    first = max(state.first_seq, landed - _PROBED_SEQUENCES)
    mine = (
        (fn.col("stream") == state.name) & (fn.col("incarnation") == incarnation) & (fn.col("seq") >= first)
    )
    rows = lake.read(BRONZE.name).where(mine).select("seq", fn.unix_micros("time").alias("micros"))
    for seq, micros in rows.orderBy("seq", ascending=False).limit(_PROBES).collect():
        found = message_time(settings, state.name, seq)
        if found is None:
            continue
        landed_at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
        if found == landed_at:
            return ""
        return (
            f"stream {state.name} contains another message at sequence {seq} (stored {found.isoformat()}) "
            f"than was landed (stored {landed_at.isoformat()}): the stream was restored to an older state "
            f"and has new messages since. {_LAND_AGAIN}"
        )
    return ""


def _recreated_text(state: StreamInfo, former: str, landed: int) -> str:
    return (
        f"stream {state.name} was deleted and created again: sequence {landed} of the one created at "
        f"{former} was landed, this one was created at {state.created}; later messages of the old stream "
        f"are lost. {_FIND_LOST} land the new stream from its beginning"
    )


def _removed_text(stream: str, first: int, behind: int) -> str:
    return (
        f"stream {stream}: sequences {first} to {behind - 1} were removed by the stream's limits or a purge "
        f"before they were landed. Raise max_age and max_bytes of the stream, or land more often. "
        f"{_FIND_LOST} continue from sequence {behind}"
    )
