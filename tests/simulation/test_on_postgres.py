"""The same simulation with the repositories of ``adapters/postgres`` and the statements of ``sql/``."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.campaign import CASES, Run, load_case, run_campaign, run_seed
from tests.simulation.postgres import Postgres
from tests.simulation.world import simulate
from tests.support.servers import PostgresAddress

SEEDS = (*range(24), 96, 107, 146)
IN_STATEMENTS = {
    "fenced ending",
    "fenced settlement",
    "late commit",
    "lease reaped",
    "redriven",
    "replay deferred",
    "unknown commit",
}
"""The rare events that are about rows; each must happen under these seeds."""


@pytest.fixture(scope="module")
def run(postgres_server: PostgresAddress) -> Iterator[Run]:
    """Simulate on a database of the session's PostgreSQL."""
    with Postgres(postgres_server) as postgres:
        yield partial(simulate, postgres=postgres)


@pytest.mark.slow
def test_every_seed_keeps_all_promises(run: Run) -> None:
    campaign = run_campaign(SEEDS, run=run)
    assert campaign.failed == {}
    assert {what for what in IN_STATEMENTS if not campaign.seen[what]} == set()


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_broke_a_promise_keeps_it_now(run: Run, path: Path) -> None:
    case = load_case(path)
    for seed in case.seeds:
        assert run(case.plan, seed).violations == []


def test_the_same_seed_does_the_same_again(run: Run) -> None:
    assert run_seed(10, run).trail == run_seed(10, run).trail
