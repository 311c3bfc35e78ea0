"""Workers whose clocks are an hour off lease, wait and settle rightly: shared time is the database's."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.hold import held
from tests.support.site import Site
from tests.support.worker import WorkerProcess

HOUR = timedelta(hours=1)
SLOPE = timedelta(minutes=10)

# What Python code can ask for the time of day; the monotonic clock stays as it is.
SHIFTED = """
import datetime, os, time

shift = int(os.environ["TEST_CLOCK_SHIFT"])
seconds, nanoseconds, real = time.time, time.time_ns, datetime.datetime
time.time = lambda: seconds() + shift
time.time_ns = lambda: nanoseconds() + shift * 10**9


class Kind(type(real)):
    def __instancecheck__(cls, value):
        return isinstance(value, real)


class Shifted(real, metaclass=Kind):
    __slots__ = ()

    @classmethod
    def now(cls, tz=None):
        return real.fromtimestamp(time.time(), tz)


datetime.datetime = Shifted
"""


@pytest.fixture
def clock_off_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Workers that are started from the call on have such a clock."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(SHIFTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clock"))

    def shift(by: timedelta) -> None:
        monkeypatch.setenv("TEST_CLOCK_SHIFT", str(int(by.total_seconds())))

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
    clock_off_by(timedelta())
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
