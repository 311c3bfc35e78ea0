"""Workers whose clocks are an hour off lease, wait and settle rightly: shared time is the database's."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults.test_inbox_handler import takes
from tests.support.clocks import shift_clock
from tests.support.handlers import answer, in_turn
from tests.support.hold import held
from tests.support.site import Site
from tests.support.worker import WorkerProcess

HOUR = timedelta(hours=1)
SLOPE = timedelta(minutes=10)
RIGHT_TIMES = """
SELECT bool_and($1 <= received_at AND received_at <= ended_at AND ended_at <= clock_timestamp())
  FROM inbox_messages, coalesce(processed_at, dead_lettered_at) AS ended_at
"""


@pytest.fixture
def clock_off_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Workers that are started from the call on have such a clock."""

    def shift(by: timedelta) -> None:
        seconds = by.total_seconds()
        shift_clock(monkeypatch, tmp_path / f"clock{seconds:.0f}", seconds=seconds)

    return shift


def clock_of(worker: WorkerProcess) -> timedelta:
    """Tell how far off a worker's clock is, by its log."""
    moment = json.loads(worker.written.splitlines()[0])["ts"]
    return datetime.fromisoformat(moment) - datetime.now(UTC)


@pytest.mark.fault("L08")
@pytest.mark.fault("N41")
async def test_workers_an_hour_apart_do_nothing_twice_or_early_and_their_clocks_show_in_no_row(
    shared: Site, clock_off_by: Callable[[timedelta], None]
) -> None:
    """One holds a claim while the others, an hour late and early, look for work and handle messages."""
    began = await shared.database.fetchval("SELECT clock_timestamp()")
    later = datetime.now(UTC) + timedelta(minutes=30)
    [due_later] = await shared.commit(available_at=later)
    async with (
        held(shared.dsn, table="outbox_events", event="UPDATE", when="NEW.state = 'PUBLISHED'") as hold,
        shared.worker(name="right", consumers="") as right,
    ):
        await right.ready()
        await shared.both_ways()
        await hold.reached()
        clock_off_by(HOUR)
        async with shared.worker(name="fast") as fast:
            clock_off_by(-HOUR)
            async with shared.worker(name="slow") as slow:
                await fast.ready()
                await slow.ready()
                assert abs(clock_of(fast) - HOUR) < SLOPE
                assert abs(clock_of(slow) + HOUR) < SLOPE
                retried, rejected = await shared.send(2)
                shared.effects.script = {
                    retried: in_turn(answer(500), takes(shared)),
                    rejected: answer(422),
                }
                for _ in range(5):
                    await shared.both_ways()
                await hold.on_done()
                row = await shared.row(due_later)
                assert (row["state"], row["publish_attempts"]) == ("PENDING", 0)
                await shared.database.execute(
                    "UPDATE outbox_events SET available_at = now() WHERE id = $1", due_later
                )
                await shared.quiet()
    await shared.audit(dead_lettered=frozenset({rejected}))
    assert await shared.database.fetchval(RIGHT_TIMES, began)
