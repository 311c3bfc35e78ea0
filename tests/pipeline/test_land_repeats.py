"""An ID is a repeat if silver has it, or an earlier message of the batch; nothing else is one."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sea_mq_worker.pipeline.jobs.land.repeats import find_repeats, to_ids
from sea_mq_worker.pipeline.lake.schemas import IDS, SILVER
from sea_mq_worker.pipeline.lake.table import LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import ENTRIES, write_files

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SOME_UUIDS = [f"{number:08x}-0000-7000-8000-00000000000{number % 2}" for number in range(5)]
ID = st.one_of(st.sampled_from([*SOME_UUIDS, "a", "b", "ü", "S/1@x"]), st.uuids().map(str))


def index(ids: list[str], *, first: int, day: int = 0) -> pa.Table:
    """Return the index of messages that have these IDs and sequences from ``first`` on."""
    rows = [
        {"message_id": message_id, "stream": "S", "incarnation": "i", "seq": seq, "published_at": BEGIN}
        | {"published_at": BEGIN + timedelta(days=day)}
        for seq, message_id in enumerate(ids, start=first)
    ]
    return pa.Table.from_batches([to_ids(pa.RecordBatch.from_pylist(rows, SILVER.schema))])


def commit(table: LakeTable, rows: pa.Table, value: int) -> None:
    written = write_files(table.lake, ((IDS, batch) for batch in rows.to_batches()))
    entries = pa.Table.from_batches(written, ENTRIES)
    table.commit(table.files(entries), Watermark("test", value))


@settings(max_examples=60)
@given(st.lists(st.lists(ID, max_size=30), max_size=3), st.lists(ID, max_size=30), st.lists(ID, max_size=30))
def test_repeats_are_those_that_a_set_finds(
    earlier: list[list[str]], uncommitted: list[str], new: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        ids, first = LakeTable(folder, IDS), 1
        for value, part in enumerate(earlier, start=1):
            commit(ids, index(part, first=first), value)
            first += len(part)
        commit(ids, index(uncommitted, first=first), len(earlier) + 1)
        ids.compact(files_max=1)

        found = find_repeats(None, ids, index(new, first=first), lambda _: first - 1, None).to_pylist()

    seen = {message_id for part in earlier for message_id in part}
    expected = []
    for seq, message_id in enumerate(new, start=first):
        if message_id in seen:
            expected.append(seq)
        seen.add(message_id)
    assert sorted(found) == expected


def test_ids_from_before_the_period_are_no_repeats(tmp_path: Path) -> None:
    ids = LakeTable(str(tmp_path), IDS)
    commit(ids, index(["old", "x"], first=1), 1)
    commit(ids, index(["young"], first=3, day=2), 2)
    ids.compact(files_max=1)

    new = index(["old", "young", "new"], first=4, day=3)

    assert find_repeats(None, ids, new, lambda _: 3, 2).to_pylist() == [5]
    for days in (3, 10**6, 10**12):
        assert find_repeats(None, ids, new, lambda _: 3, days).to_pylist() == [4, 5]


def test_a_search_reads_one_part_of_a_large_index_per_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = LakeTable(str(tmp_path), IDS)
    every = [str(uuid4()) for _ in range(100_000)]
    for value, start in enumerate(range(0, len(every), 10_000), start=1):
        commit(ids, index(every[start : start + 10_000], first=start + 1), value)
    ids.compact(files_max=1)
    groups: list[int] = []
    read = pq.ParquetFile.iter_batches

    def counted(self: pq.ParquetFile, *, row_groups: list[int]) -> Iterator[pa.RecordBatch]:
        groups.extend(row_groups)
        return read(self, row_groups=row_groups)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    new = index([str(uuid4()), every[5], str(uuid4())], first=len(every) + 1)

    assert find_repeats(None, ids, new, lambda _: len(every), None).to_pylist() == [len(every) + 2]
    assert 1 <= len(groups) <= 3
