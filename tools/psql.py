"""Print a statement of ``sql/queries`` as a script for psql.

    python -m tools.psql operators list_outbox | psql -v states="'{DEAD}'" -v finished=false -v limit=10

Parameters are psql variables. One that ``-v`` does not set is NULL, which as a filter matches everything.
"""

import argparse
import sys

from sea_mq_worker.postgres.queries import load_named


def script(file: str, name: str) -> str:
    """Return a statement, after a line for each parameter that sets it to NULL unless psql has it."""
    query = load_named(file)[name]
    defaults = [f"\\if :{{?{one}}} \\else \\set {one} NULL \\endif" for one in query.parameters]
    return "\n".join([*defaults, f"{query.text};\n"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.psql")
    parser.add_argument("file", help="operators, for example, for sql/queries/operators.sql")
    parser.add_argument("name", help="list_outbox, for example, for the statement `-- name: list_outbox`")
    given = parser.parse_args()
    sys.stdout.write(script(given.file, given.name))
