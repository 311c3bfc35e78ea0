"""``python -m tools.docs``: write everything in the documents that follows from the code.

With ``--check`` it writes nothing, and lists the stale files. Exit code 1: there are some.
"""

import argparse
import sys

from tools.docs.pages import PAGES, ROOT, stale


def main() -> int:
    """Write the stale files, or list them."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; list the stale files")
    check = parser.parse_args().check
    found = stale(PAGES)
    for path, text in found.items():
        if not check:
            path.write_text(text)
        sys.stdout.write(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return int(check and bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
