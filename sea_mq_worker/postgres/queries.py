"""Named statements of ``sql/queries``.

A file holds statements, each under ``-- name: NAME``, and fragments, each under ``-- fragment: NAME``. In a
statement ``:NAME`` stands for a fragment of the same file, or else for a parameter. psql writes its
variables in the same way: ``python -m tools.psql FILE NAME`` prints a statement that psql runs.

    -- fragment: is_dead
    NOT o.is_open AND o.published_at IS NULL

    -- name: dead
    SELECT o.id FROM outbox_events o WHERE :is_dead AND o.ordering_key = :key::text LIMIT :limit;

Of such a file ``load_named(file)["dead"].bind(key="a", limit=9)`` returns

    ("SELECT o.id FROM outbox_events o WHERE NOT o.is_open AND o.published_at IS NULL"
     " AND o.ordering_key = $1::text LIMIT $2", "a", 9)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sea_mq_worker.resources import resource_folder

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"'[^']*'|(?<!:):([a-z]\w*)")
"""A fragment or a parameter; a literal is matched so that it is left as it is."""

_FILES = {
    file.stem: file.read_text(encoding="utf-8") for file in (resource_folder("sql") / "queries").glob("*.sql")
}
"""Read once, before any loop runs: a worker without descriptors to spare can open no file, and one whose
files an upgrade replaces keeps the statements that fit it."""


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A statement whose parameters have names.

    Attributes:
        text: as psql takes it.
        sql: as PostgreSQL takes it: ``$n`` stands for the nth of ``parameters``.
    """

    text: str
    sql: str
    parameters: tuple[str, ...]

    def bind(self, source: object = None, /, **values: object) -> tuple[str, *tuple[object, ...]]:
        """Return the SQL and its arguments: ``values``, and attributes of ``source`` for all others.

        A tuple becomes a list of texts. The driver would query the type of any other array in each new
        connection, and that takes longer than the statement.
        """
        arguments = (values[name] if name in values else getattr(source, name) for name in self.parameters)
        return (self.sql, *([str(one) for one in a] if isinstance(a, tuple) else a for a in arguments))


def load_queries(file: str) -> Mapping[str, str]:
    """Return the statements of ``sql/queries/{file}.sql``, each without its name, comments and semicolon."""
    return {name: query.sql for name, query in load_named(file).items()}


def load_named(file: str) -> Mapping[str, NamedQuery]:
    """Return the same statements with the names of their parameters."""
    parts = _BLOCK.split(_FILES[file])[1:]
    blocks = [*zip(parts[::3], parts[1::3], map(_without_comments, parts[2::3]), strict=True)]
    fragments = {name: text for kind, name, text in blocks if kind == "fragment"}
    return {name: _named(text, fragments) for kind, name, text in blocks if kind == "name"}


def _named(text: str, fragments: Mapping[str, str]) -> NamedQuery:
    """Fill in the fragments, which hold no others, and number the parameters by their first use."""
    whole = _PLACEHOLDER.sub(lambda found: fragments.get(found[1], found[0]), text)
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}" if found[1] else found[0]

    return NamedQuery(text=whole, sql=_PLACEHOLDER.sub(numbered, whole), parameters=tuple(numbers))


def _without_comments(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines).rstrip(";")
