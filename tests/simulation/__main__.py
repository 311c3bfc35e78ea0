# ruff: noqa: T201 - a command prints
"""Long campaigns: ``python -m tests.simulation --seeds 2000``, or with ``--bug NAME`` to see who finds it.

Exit code 1: a promise was broken, an event that should happen sometimes never did, or no seed found the bug.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.simulation.bugs import BUGS
from tests.simulation.campaign import BUG_CASES, CASES, Campaign, case_of, run_campaign, run_seed

_TOLD_MAX = 10


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--bug", choices=[*BUGS, "all"], help="plant it, or each of them")
    parser.add_argument("--keep", action="store_true", help="store the first failure as a case")
    parser.add_argument("--trail", action="store_true", help="print all that happens under the first seed")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    if given.trail:
        print(*run_seed(given.first).trail, sep="\n")
        return 0
    if not given.bug:
        return _search(seeds, keep=given.keep)
    names = list(BUGS) if given.bug == "all" else [given.bug]
    found = [_hunt(name, seeds, keep=given.keep) for name in names]
    print(f"{sum(found)} of {len(names)} found")
    return 0 if all(found) else 1


def _search(seeds: range, *, keep: bool) -> int:
    campaign = run_campaign(seeds, on_seed=_tell_progress)
    for seed, violations in list(campaign.failed.items())[:_TOLD_MAX]:
        print(f"seed {seed}: {violations[0]}")
    for what, count in sorted(campaign.seen.items()):
        print(f"{count:8} {what}")
    for what in campaign.missing():
        print(f"   never {what}")
    print(f"{len(campaign.failed)} of {campaign.seeds} seeds failed")
    if keep and campaign.failed:
        _keep(f"seed_{min(campaign.failed)}", campaign, CASES)
    return 1 if campaign.failed or campaign.missing() else 0


def _hunt(name: str, seeds: range, *, keep: bool) -> bool:
    with BUGS[name]():
        campaign = run_campaign(seeds, on_seed=_tell_progress)
        if keep and campaign.failed:
            _keep(name, campaign, BUG_CASES)
    count, first = len(campaign.failed), min(campaign.failed, default=None)
    kinds = Counter(violations[0].partition(":")[0] for violations in campaign.failed.values())
    print(f"{name}: found by {count} of {len(seeds)} seeds, first by {first} {dict(kinds)}", flush=True)
    return bool(count)


def _keep(name: str, campaign: Campaign, folder: Path) -> None:
    case_of(name.replace(" ", "_").replace("'", ""), sorted(campaign.failed)).store(folder)


def _tell_progress(seed: int) -> None:
    if sys.stderr.isatty():
        print(f"\rseed {seed}", end="", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
