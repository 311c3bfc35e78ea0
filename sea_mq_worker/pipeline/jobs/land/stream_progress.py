"""Which streams of one name were landed, told by the lake's marks alone.

A stream that was deleted and made again, or restored to an older state, gives the same sequences to other
messages. Each of them is an incarnation: the time it was created, with ``#n`` behind it after the n-th
restore.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.lake.watermarks import Watermark

_NS = 10**9
_FRACTION = re.compile(r"\.(\d{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """How far a stream was landed.

    Attributes:
        stream: its name.
        created: when it was created, in nanoseconds since 1970; 0: it was never landed.
        restores: how often it was found restored since.
        landed: the last sequence landed of this incarnation.
        before: ``created`` of the stream of this name that was landed before; 0: there was none.
    """

    stream: str
    created: int
    restores: int = 0
    landed: int = 0
    before: int = 0

    @property
    def incarnation(self) -> str:
        """Return what tells it from others of its name."""
        return moment_text(self.created) + (f"#{self.restores}" if self.restores else "")

    @property
    def name(self) -> str:
        """Return the name of its mark in each table."""
        return f"{self.stream} {self.incarnation}"

    def landed_to(self, seq: int) -> tuple[Watermark, ...]:
        """Return the marks of a commit that brings it to ``seq``; no other run can have come between."""
        return (
            Watermark(self.name, seq, after=self.landed),
            Watermark(_created(self.stream), self.created, after=self.created),
            Watermark(_restored(self.stream, self.created), self.restores, after=self.restores),
        )

    def made_again(self, created: int) -> tuple[Watermark, ...]:
        """Return the marks of a commit that goes on with another stream of the name."""
        return (
            Watermark(_created(self.stream), created, after=self.created),
            Watermark(_before(self.stream, created), self.created),
        )

    def restored(self) -> tuple[Watermark, ...]:
        """Return the marks of a commit that goes on with an older state of the same stream."""
        return (Watermark(_restored(self.stream, self.created), self.restores + 1, after=self.restores),)


def progress_of(bronze: LakeTable, stream: str) -> StreamProgress:
    """Return how far a stream was landed."""
    value = _values(bronze)
    return _place(value, stream, value(_created(stream)))


def incarnations(bronze: LakeTable, stream: str) -> list[StreamProgress]:
    """Return all that was landed under a stream's name, the oldest first."""
    value = _values(bronze)
    found: list[StreamProgress] = []
    created = value(_created(stream))
    while created and created not in {place.created for place in found}:
        last = _place(value, stream, created)
        earlier = [replace(last, restores=n) for n in range(last.restores - 1, -1, -1)]
        found += [last, *(replace(each, landed=value(each.name)) for each in earlier)]
        created = last.before
    return found[::-1]


def _values(bronze: LakeTable) -> Callable[[str], int]:
    table = bronze.open()
    return lambda name: (table.transaction_version(name) if table else None) or 0


def _place(value: Callable[[str], int], stream: str, created: int) -> StreamProgress:
    restores, before = value(_restored(stream, created)), value(_before(stream, created))
    place = StreamProgress(stream=stream, created=created, restores=restores, before=before)
    return replace(place, landed=value(place.name))


def _created(stream: str) -> str:
    return f"created {stream}"


def _restored(stream: str, created: int) -> str:
    return f"restored {stream} {moment_text(created)}"


def _before(stream: str, created: int) -> str:
    return f"before {stream} {moment_text(created)}"


def nanoseconds(text: str) -> int:
    """Read the server's time, which has up to nine digits behind the second."""
    whole = int(datetime.fromisoformat(text).replace(microsecond=0).timestamp())
    fraction = _FRACTION.search(text)
    return whole * _NS + int(fraction[1].ljust(9, "0") if fraction else 0)


def moment_text(ns: int) -> str:
    """Write nanoseconds since 1970 as the server writes times: RFC 3339 without zeros at the end."""
    whole = datetime.fromtimestamp(ns // _NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{ns % _NS:09}".rstrip("0")
    return f"{whole}.{fraction}Z" if fraction else f"{whole}Z"
