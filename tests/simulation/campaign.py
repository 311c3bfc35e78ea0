"""Many simulations, one for each seed: the seed draws the plan and drives the schedule."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from tests.simulation.plan import Plan, draw_plan
from tests.simulation.run import SOMETIMES, Report
from tests.simulation.world import simulate

Run: TypeAlias = Callable[[Plan, int], Report]

CASES = Path(__file__).with_name("cases")
BUG_CASES = CASES / "bugs"
_CANDIDATES = 5
_SCHEDULES = 60
_SCHEDULES_KEPT = 3


@dataclass(slots=True)
class Campaign:
    """What a campaign found.

    Attributes:
        failed: violations by seed.
        seen: how often each of SOMETIMES happened.
    """

    seeds: int = 0
    failed: dict[int, list[str]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "Campaign") -> Self:
        self.seeds += other.seeds
        self.failed |= other.failed
        self.seen += other.seen
        return self

    def missing(self) -> list[str]:
        """Name what should happen sometimes and never did."""
        return [what for what in SOMETIMES if not self.seen[what]]


def run_seed(seed: int, run: Run = simulate) -> Report:
    """Simulate what a seed draws."""
    return run(draw_plan(seed), seed)


def run_campaign(
    seeds: Iterable[int],
    *,
    run: Run = simulate,
    on_seed: Callable[[int], object] = lambda _seed: None,
) -> Campaign:
    """Simulate every seed, failing or not."""
    campaign = Campaign()
    for seed in seeds:
        report = run_seed(seed, run)
        campaign.seeds += 1
        campaign.seen += report.seen
        if report.violations:
            campaign.failed[seed] = report.violations
        on_seed(seed)
    return campaign


@dataclass(frozen=True, slots=True)
class Case:
    """A plan that broke ``invariant`` under each of the seeds; kept in a file of its name."""

    name: str
    invariant: str
    seeds: tuple[int, ...]
    plan: Plan

    def store(self, folder: Path) -> None:
        """Write it."""
        folder.mkdir(exist_ok=True)
        case = {"invariant": self.invariant, "seeds": self.seeds, "plan": dataclasses.asdict(self.plan)}
        (folder / f"{self.name}.json").write_text(json.dumps(case, indent=1) + "\n")


def load_case(path: Path) -> Case:
    """Read one."""
    given = json.loads(path.read_text())
    return Case(path.stem, given["invariant"], tuple(given["seeds"]), msgspec.convert(given["plan"], Plan))


def case_of(name: str, seeds: Iterable[int], run: Run = simulate) -> Case:
    """Make a small case of seeds that fail: of the plan that fails most easily, whatever the schedule."""
    cases = []
    for seed in itertools.islice(seeds, _CANDIDATES):
        plan = draw_plan(seed)
        invariant = invariant_of(run(plan, seed))
        cases.append(Case(name, invariant, failing_schedules(plan, invariant, run) or (seed,), plan))
    best = min(cases, key=lambda case: (-len(case.seeds), case.seeds[-1]))
    return shrunk(best, run)


def failing_schedules(plan: Plan, invariant: str, run: Run) -> tuple[int, ...]:
    """Return the first few of many seeds under which a plan breaks an invariant."""
    failing = (seed for seed in range(_SCHEDULES) if invariant_of(run(plan, seed)) == invariant)
    return tuple(itertools.islice(failing, _SCHEDULES_KEPT))


def invariant_of(report: Report) -> str:
    """Return the id of the first broken invariant, or nothing."""
    return report.violations[0].partition(":")[0] if report.violations else ""


def shrunk(case: Case, run: Run) -> Case:
    """Leave out of a failing plan what it fails as easily without."""
    for plan in _smaller(case.plan):
        if not (plan.transactions or plan.messages):
            continue
        seeds = failing_schedules(plan, case.invariant, run)
        if len(seeds) >= len(case.seeds):
            return shrunk(dataclasses.replace(case, plan=plan, seeds=seeds), run)
    return case


def _smaller(plan: Plan) -> Iterator[Plan]:
    for name in ("troubles", "actions", "transactions", "messages"):
        parts = getattr(plan, name)
        for place in range(len(parts)):
            yield dataclasses.replace(plan, **{name: parts[:place] + parts[place + 1 :]})
    for place, written in enumerate(plan.transactions):
        for row in range(len(written.rows) if len(written.rows) > 1 else 0):
            fewer = dataclasses.replace(written, rows=written.rows[:row] + written.rows[row + 1 :])
            yield dataclasses.replace(
                plan, transactions=(*plan.transactions[:place], fewer, *plan.transactions[place + 1 :])
            )
    if plan.workers > 1:
        yield dataclasses.replace(plan, workers=plan.workers - 1)
    simple = {"keeps_order": False, "hold_dead_keys": False, "tight": False, "skew": 0.0}
    for name, value in simple.items():
        if getattr(plan, name) != value:
            changed: dict[str, Any] = {name: value}
            yield dataclasses.replace(plan, **changed)
