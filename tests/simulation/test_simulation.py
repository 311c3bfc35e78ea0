"""The worker's own loops under faults in virtual time; see world.py for what is simulated."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.campaign import BUG_CASES, CASES, Case, invariant_of, load_case, run_campaign, run_seed
from tests.simulation.plan import draw_plan
from tests.simulation.world import simulate

SEEDS = (*range(200), 484, 554)
"""The last two show events that are rare."""
MORE_SEEDS = range(200, 1500)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_seed_of_a_campaign_keeps_all_promises_and_all_faults_occur() -> None:
    """More seeds only where one of the rare events has not happened yet."""
    campaign = run_campaign(SEEDS)
    more = iter(MORE_SEEDS)
    while campaign.missing() and (seed := next(more, None)) is not None:
        campaign += run_campaign([seed])
    assert campaign.failed == {}
    assert campaign.missing() == []


def test_a_case_survives_being_stored(tmp_path: Path) -> None:
    for seed in range(20):
        case = Case("case", "I1", (seed,), draw_plan(seed))
        case.store(tmp_path)
        assert load_case(tmp_path / "case.json") == case


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_broke_a_promise_keeps_it_now(path: Path) -> None:
    case = load_case(path)
    for seed in case.seeds:
        report = simulate(case.plan, seed)
        assert report.violations == [], "\n".join(report.trail)


def test_the_same_seed_does_the_same_in_another_process() -> None:
    """Whatever ran before and however strings hash."""
    program = (
        "from tests.simulation.campaign import run_seed; [print(*run_seed(seed).trail) for seed in (%s)]"
    )
    reported = [
        subprocess.run(
            [sys.executable, "-c", program % seeds],
            env={"PYTHONHASHSEED": str(number)},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number, seeds in enumerate(("7, 8, 9, 10, 11, 12", "7, 8, 9, 10, 11, 12"))
    ]
    assert reported[0] == reported[1]
    assert "\n".join(run_seed(12).trail).splitlines()[-1] in reported[0]


OTHER_SEEDS = range(150)
PLANTED = {path.stem: load_case(path) for path in sorted(BUG_CASES.glob("*.json"))}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """Under a seed that is known to, or another one since the worker's steps have changed.

    ``python -m tests.simulation --bug NAME --keep`` finds a better plan.
    """
    case = PLANTED[name.replace(" ", "_").replace("'", "")]
    with BUGS[name]():
        seeds = (*case.seeds, *OTHER_SEEDS)
        assert any(invariant_of(simulate(case.plan, seed)) == case.invariant for seed in seeds)


@pytest.mark.parametrize("name", PLANTED)
def test_without_the_bug_its_plan_keeps_all_promises(name: str) -> None:
    for seed in PLANTED[name].seeds:
        assert simulate(PLANTED[name].plan, seed).violations == []
