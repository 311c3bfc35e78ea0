"""The simulation finds what it is for: planted bugs, each under a plan that is known to bring it out."""

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.campaign import BUG_CASES, invariant_of, load_case
from tests.simulation.world import simulate

OTHER_SEEDS = range(150)
CASES = {path.stem: load_case(path) for path in sorted(BUG_CASES.glob("*.json"))}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """Under a seed that is known to, or another one since the worker's steps have changed.

    ``python -m tests.simulation --bug NAME --keep`` finds a better plan.
    """
    case = CASES[name.replace(" ", "_").replace("'", "")]
    with BUGS[name]():
        seeds = (*case.seeds, *OTHER_SEEDS)
        assert any(invariant_of(simulate(case.plan, seed)) == case.invariant for seed in seeds)


@pytest.mark.parametrize("name", CASES)
def test_without_the_bug_its_plan_keeps_all_promises(name: str) -> None:
    for seed in CASES[name].seeds:
        assert simulate(CASES[name].plan, seed).violations == []
