"""``python -m benchmarks.publish``: take every figure of the documents, and write the documents. Linux only.

Takes about two hours; ``--only`` takes some of the figures.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.figures import FOLDER
from benchmarks.report import say

COMMANDS: Mapping[str, str] = MappingProxyType({
    "takeover": "benchmarks.takeover",
    "worker": "benchmarks",
    "sweep": "benchmarks --rounds 2 --workload 'steady rate sweep'",
    "conditions": "benchmarks --rounds 1 --workload 'drain, conditions'",
    "workers": "benchmarks --rounds 2 --workload 'workers, no keys' --workload 'workers, 10 to a key'",
    "inboxes": "benchmarks --rounds 1 --workload 'inbox, FastStream'",
    "backlogs": "benchmarks --rounds 1 --workload 'backlogs, no keys' --workload 'backlogs, 10 to a key'",
    "long": "benchmarks --workload 'drain, history'",
    "churn": "benchmarks --rounds 1 --workload memory --workload churn",
    "looks": "benchmarks --rounds 1 --workload looks",
    "pipeline": "benchmarks.pipeline",
    "peers": "benchmarks.peers --rounds 2 --workload 'drain, no keys'",
    "peers-steady": "benchmarks.peers --rounds 1 --workload 'steady rate'",
})  # fmt: skip
"""The command of each file of figures, without its ``--json``."""


def main() -> int:
    """Run the commands one after the other, then the generator of the documents."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--only", action="append", choices=COMMANDS, help="only these; may be repeated (all)")
    names = parser.parse_args().only or [*COMMANDS]
    failed = [name for name in names if _run(*shlex.split(COMMANDS[name]), "--json", f"{FOLDER / name}.json")]
    for name in failed:
        say(f"failed: {name}")
    return _run("tools.docs") or int(bool(failed))


def _run(*command: str) -> int:
    say(" ".join(command))
    return subprocess.run([sys.executable, "-m", *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
