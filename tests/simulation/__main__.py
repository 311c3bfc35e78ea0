# ruff: noqa: T201 - a command prints
"""Long campaigns: ``python -m tests.simulation --seeds 2000``, or with ``--bug NAME`` to see who finds it.

Exit code 1: a promise was broken, an event that should happen sometimes never did, or no seed found the bug.
"""

import argparse
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from tests.simulation.bugs import BUGS, Plant
from tests.simulation.campaign import BUG_CASES, CASES, Campaign, Run, case_of, run_campaign, run_seed
from tests.simulation.postgres import Postgres
from tests.simulation.world import simulate

_TOLD_MAX = 10


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument(
        "--postgres", action="store_true", help="run the statements of sql/ in a real PostgreSQL, slower"
    )
    parser.add_argument("--bug", choices=[*BUGS, "all"], help="plant it, or each of them")
    parser.add_argument("--keep", action="store_true", help="store the first failure as a case")
    parser.add_argument("--trail", action="store_true", help="print all that happens under the first seed")
    given = parser.parse_args()
    if not given.postgres:
        return _run(given, simulate)
    with Postgres() as postgres:
        return _run(given, partial(simulate, postgres=postgres))


def _run(given: argparse.Namespace, run: Run) -> int:
    seeds = range(given.first, given.first + given.seeds)
    if given.trail:
        print(*run_seed(given.first, run).trail, sep="\n")
        return 0
    if not given.bug:
        return _search(seeds, run, keep=given.keep)
    names = list(BUGS) if given.bug == "all" else [given.bug]
    found = [_hunt(name, BUGS[name], seeds, run, keep=given.keep) for name in names]
    print(f"{sum(found)} of {len(names)} found")
    return 0 if all(found) else 1


def _search(seeds: range, run: Run, *, keep: bool) -> int:
    campaign = run_campaign(seeds, run=run, on_seed=_tell_progress)
    for seed, violations in list(campaign.failed.items())[:_TOLD_MAX]:
        print(f"seed {seed}: {violations[0]}")
    for what, count in sorted(campaign.seen.items()):
        print(f"{count:8} {what}")
    for what in campaign.missing():
        print(f"   never {what}")
    print(f"{len(campaign.failed)} of {campaign.seeds} seeds failed")
    if keep and campaign.failed:
        _keep(f"seed_{min(campaign.failed)}", campaign, CASES, run)
    return 1 if campaign.failed or campaign.missing() else 0


def _hunt(name: str, plant: Plant, seeds: range, run: Run, *, keep: bool) -> bool:
    with plant():
        campaign = run_campaign(seeds, run=run, on_seed=_tell_progress)
        if keep and campaign.failed:
            _keep(name, campaign, BUG_CASES, run)
    count, first = len(campaign.failed), min(campaign.failed, default=None)
    kinds = Counter(violations[0].partition(":")[0] for violations in campaign.failed.values())
    print(f"{name}: found by {count} of {len(seeds)} seeds, first by {first} {dict(kinds)}", flush=True)
    return bool(count)


def _keep(name: str, campaign: Campaign, folder: Path, run: Run) -> None:
    case_of(name.replace(" ", "_").replace("'", ""), sorted(campaign.failed), run).store(folder)


def _tell_progress(seed: int) -> None:
    if sys.stderr.isatty():
        print(f"\rseed {seed}", end="", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
