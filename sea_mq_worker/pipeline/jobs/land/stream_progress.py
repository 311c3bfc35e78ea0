"""Progress of landing streams, stored only in the lake's watermarks.

A stream that was deleted and created again, or restored to an older state, uses the same sequences for other
messages. Each such state of a stream is an incarnation. Its name is the stream's creation time, followed by
``#n`` after the n-th restore.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable, Watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """Progress of landing a stream.

    Attributes:
        stream: the stream's name.
        created: the stream's creation time in nanoseconds since 1970; 0: never landed.
        restores: number of detected restores since then.
        landed: the last landed sequence of this incarnation.
        before: ``created`` of the stream with this name that was landed before; 0: none.
    """

    stream: str
    created: int
    restores: int = 0
    landed: int = 0
    before: int = 0

    @property
    def incarnation(self) -> str:
        """The incarnation's name, unique among streams with the same name."""
        return moment_text(self.created) + (f"#{self.restores}" if self.restores else "")

    @property
    def name(self) -> str:
        """The name of the incarnation's watermark in each table."""
        return f"{self.stream} {self.incarnation}"

    def rows(self, after: int, upto: int) -> Conditions:
        """Return the conditions for rows of this incarnation after one sequence and up to another."""
        return [
            ("stream", "=", self.stream),
            ("incarnation", "=", self.incarnation),
            ("seq", ">", after),
            ("seq", "<=", upto),
        ]

    def metadata(self, first: int, last: int) -> dict[str, str]:
        """Describe the commit of a range of sequences for the table's history."""
        return {"sea_mq.job": "land", "sea_mq.stream": self.stream, "sea_mq.range": f"{first}-{last}"}

    def landed_to(self, seq: int) -> tuple[Watermark, ...]:
        """Return the watermarks of a commit up to ``seq``, which fails if another run committed first."""
        return (
            Watermark(self.name, seq, after=self.landed),
            Watermark(f"created {self.stream}", self.created, after=self.created),
            Watermark(
                f"restored {self.stream} {moment_text(self.created)}", self.restores, after=self.restores
            ),
        )

    def recreated(self, created: int, known: Iterable["StreamProgress"]) -> tuple[Watermark, ...]:
        """Return the watermarks of a commit that switches to another stream with the same name.

        If the stream is one of the ``known`` incarnations, its former place in the chain is closed.
        """
        before = {each.created: each.before for each in known}
        moved = {each: before[created] for each, earlier in before.items() if earlier == created}
        chain = (moved | {created: self.created}).items()
        return (
            Watermark(f"created {self.stream}", created, after=self.created),
            *(Watermark(f"before {self.stream} {moment_text(each)}", earlier) for each, earlier in chain),
        )

    def restored(self) -> tuple[Watermark, ...]:
        """Return the watermarks of a commit that switches to a restored state of the same stream."""
        name = f"restored {self.stream} {moment_text(self.created)}"
        return (Watermark(name, self.restores + 1, after=self.restores),)


def progress_of(bronze: LakeTable, stream: str) -> StreamProgress:
    """Return the progress of a stream's latest incarnation."""
    value = bronze.watermarks()
    return _progress(value, stream, value(f"created {stream}"))


def incarnations(bronze: LakeTable, stream: str) -> list[StreamProgress]:
    """Return the progress of all incarnations of a stream's name, oldest first."""
    value = bronze.watermarks()
    found: list[StreamProgress] = []
    created = value(f"created {stream}")
    while created and created not in {progress.created for progress in found}:
        last = _progress(value, stream, created)
        earlier = [replace(last, restores=n) for n in range(last.restores - 1, -1, -1)]
        found += [last, *(replace(each, landed=value(each.name)) for each in earlier)]
        created = last.before
    return found[::-1]


def _progress(value: Callable[[str], int], stream: str, created: int) -> StreamProgress:
    name = f"{stream} {moment_text(created)}"
    restores, before = value(f"restored {name}"), value(f"before {name}")
    progress = StreamProgress(stream=stream, created=created, restores=restores, before=before)
    return replace(progress, landed=value(progress.name))


def nanoseconds(text: str) -> int:
    """Parse the server's time, which has up to nine decimal places."""
    return int(pa.scalar(text).cast(pa.timestamp("ns", tz="UTC")).value)


def moment_text(ns: int) -> str:
    """Format nanoseconds since 1970 as the server does: RFC 3339 without trailing zeros."""
    return f"{np.datetime64(ns, 'ns')}".rstrip("0").rstrip(".") + "Z"
