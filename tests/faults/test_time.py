"""Workers whose clocks are an hour off lease, wait and settle rightly: shared time is the database's."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.clocks import shift_clock
from tests.support.handlers import answer, in_turn
from tests.support.hold import held
from tests.support.site import Site
from tests.support.worker import WorkerProcess

HOUR = timedelta(hours=1)
SLOPE = timedelta(minutes=10)


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
async def test_workers_an_hour_apart_claim_nothing_twice_and_nothing_early(
    shared: Site, clock_off_by: Callable[[timedelta], None]
) -> None:
    """One holds a claim and a message while the others, an hour late and early, look for work."""
    later = datetime.now(UTC) + timedelta(minutes=30)
    [due_later] = await shared.commit(available_at=later)
    async with (
        held(shared.dsn, table="outbox_events", event="UPDATE", when="NEW.state = 'PUBLISHED'") as hold,
        shared.worker(name="right") as right,
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
                for _ in range(5):
                    await shared.both_ways()
                await hold.on_done()
                row = await shared.row(due_later)
                assert (row["state"], row["publish_attempts"]) == ("PENDING", 0)
                await shared.database.execute(
                    "UPDATE outbox_events SET available_at = now() WHERE id = $1", due_later
                )
                await shared.quiet()
    await shared.audit()


@pytest.mark.fault("N41")
@pytest.mark.parametrize("off_by", [-HOUR, HOUR], ids=["late", "early"])
async def test_a_wrong_clock_shows_in_no_row_and_moves_no_retry(
    shared: Site, clock_off_by: Callable[[timedelta], None], off_by: timedelta
) -> None:
    clock_off_by(off_by)
    began = await shared.database.fetchval("SELECT clock_timestamp()")
    first, second, rejected = await shared.send(3)
    shared.effects.script[second] = in_turn(answer(500), answer(200))
    shared.effects.script[rejected] = answer(422)
    async with shared.worker() as worker:
        await shared.quiet()
        assert abs(clock_of(worker) - off_by) < SLOPE
    ended = await shared.database.fetchval("SELECT clock_timestamp()")
    endings = {first: "processed_at", second: "processed_at", rejected: "dead_lettered_at"}
    for message_id, ending in endings.items():
        row = await shared.inbox_row(message_id)
        assert began <= row["received_at"] <= row[ending] <= ended
