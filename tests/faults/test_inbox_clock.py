"""A worker whose clock is wrong: the times of the inbox are the database's."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.clocks import shift_clock
from tests.support.handlers import answer, in_turn
from tests.support.site import Site


@pytest.mark.fault("N41")
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wrong_clock_shows_in_no_row_and_moves_no_retry(
    hours: int, shared: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shift_clock(monkeypatch, tmp_path / "site", seconds=hours * 3600)
    began = await shared.database.fetchval("SELECT clock_timestamp()")
    first, second, rejected = await shared.send(3)
    shared.effects.script[second] = in_turn(answer(500), answer(200))
    shared.effects.script[rejected] = answer(422)
    async with shared.worker() as worker:
        await shared.quiet()
        logged = datetime.fromisoformat(worker.written.partition('"ts": "')[2].partition('"')[0])
    assert abs(logged - began - timedelta(hours=hours)) < timedelta(minutes=1), "its clock is wrong"
    ended = await shared.database.fetchval("SELECT clock_timestamp()")
    for message_id in (first, second):
        row = await shared.inbox_row(message_id)
        assert began <= row["received_at"] <= row["processed_at"] <= ended
    row = await shared.inbox_row(rejected)
    assert began <= row["received_at"] <= row["dead_lettered_at"] <= ended
