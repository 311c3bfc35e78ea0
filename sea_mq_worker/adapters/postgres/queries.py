"""Named statements of ``sql/queries``, the same text that psql takes."""

import re
from collections.abc import Mapping

from sea_mq_worker.resources import resource_folder

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries(file: str, *names: str) -> Mapping[str, str]:
    """Read the statements of ``sql/queries/{file}.sql``, each without its name, comments and semicolon.

    Raises:
        LookupError: the file does not hold exactly the statements ``names``.
    """
    text = (resource_folder("sql") / "queries" / f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    found = {name: _statement(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    if len(parts) != 2 * len(names) or found.keys() != set(names):
        raise LookupError(f"sql/queries/{file}.sql holds {sorted(found)}, not {sorted(names)}")
    return found


def _statement(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines).rstrip(";")
