"""A worker with nothing to do is nearly silent."""

import time
from pathlib import Path

import pytest

from tests.counters import budgets
from tests.counters.meters import Meters, Statements
from tests.support.waiting import eventually
from tests.support.worker import running

LOOKS_UNTIL_SLOW = 11
"""The waits of an idle lane double from 5 ms on to two seconds."""
LOOKS = 2
LANES = (
    "ordering_key IS NULL AND o.publish_error IS NULL\n       AND o.state = $",
    "pg_try_advisory_xact_lock",
)
"""What the claim of each lane holds and no other statement does."""
SAMPLE_SECONDS = 15


@pytest.mark.fault("P44")
@pytest.mark.asyncio(loop_scope="session")
async def test_an_idle_worker_is_nearly_silent(metered: Meters, tmp_path: Path) -> None:
    async with running(metered.target, tmp_path / "log") as worker:
        await worker.ready()
        before, began = await looked(metered, LOOKS_UNTIL_SLOW)
        after, ended = await looked(metered, max(map(before.holding, LANES)) + LOOKS)
    spent, seconds = after - before, ended - began
    in_a_span_of_no_length = len(LANES)
    looks = sum(map(spent.holding, LANES)) - in_a_span_of_no_length
    budgets.IDLE_LOOKS_PER_SECOND.check(looks / seconds, spent)
    others = [calls for text, calls in spent.calls.items() if not any(lane in text for lane in LANES)]
    samples = 1 + seconds // SAMPLE_SECONDS
    budgets.IDLE_REPEATS.check(max(others, default=0) / samples, spent)
    budgets.IDLE_OTHERS.check(sum(others) / samples, spent)


async def looked(metered: Meters, times: int) -> tuple[Statements, float]:
    """Wait until each lane has looked so often; return all statements so far, and when that was."""

    async def found() -> Statements | None:
        statements = await metered.statements()
        return statements if all(statements.holding(lane) >= times for lane in LANES) else None

    statements = await eventually(found, within=60, what=f"each lane has looked {times} times")
    return statements, time.monotonic()
