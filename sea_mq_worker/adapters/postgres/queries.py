"""Named statements of ``sql/queries``, the same text that psql takes."""

import re
from collections.abc import Mapping

from sea_mq_worker.resources import resource_folder

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_JOIN = re.compile(r"\bo\.(?:ctid|id) = (\w+\.\w+)")

_FILES = {
    file.stem: file.read_text(encoding="utf-8") for file in (resource_folder("sql") / "queries").glob("*.sql")
}
"""Read once, before any loop runs: a worker without descriptors to spare can open no file, and one whose
files an upgrade replaces keeps the statements that fit it."""


def load_queries(file: str, *names: str) -> Mapping[str, str]:
    """Return the statements of ``sql/queries/{file}.sql``, each without its name, comments and semicolon.

    Raises:
        LookupError: the file does not hold exactly the statements ``names``.
    """
    parts = _NAME.split(_FILES[file])[1:]
    found = {name: _statement(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    if len(parts) != 2 * len(names) or found.keys() != set(names):
        raise LookupError(f"sql/queries/{file}.sql holds {sorted(found)}, not {sorted(names)}")
    return found


def joined_by_id(statement: str) -> str:
    """Return a statement that finds rows of ``o`` again by their place so that it finds them by id.

    The id is compared with an array of one: that can only be looked up, and leaves out the partitions that
    cannot have it. A plan may be older than the rows of a partition, and by a plain comparison would read all
    of its index, which cost nothing as long as there was none.
    """
    return _JOIN.sub(r"o.id = ANY (ARRAY[\1])", statement).replace("o.ctid", "o.id")


def _statement(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines).rstrip(";")
