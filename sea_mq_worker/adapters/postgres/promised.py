"""Which indexes and triggers the schema has, read from the scripts that make them."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sea_mq_worker.resources import resource_folder

TABLES = ("sea_mq_migrations", "sea_mq_context", "outbox_events", "inbox_messages", "operator_actions")

_STATEMENT = re.compile(r"^ *(CREATE|DROP) (?:UNIQUE )?(INDEX|TRIGGER) (\w+)[^;]*;", re.MULTILINE)
_RELATION = re.compile(r"\bON (\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """An index or trigger: the table that it is on, and the statement that makes it."""

    relation: str
    sql: str


@functools.cache
def promised(kind: str, *, partitioned: bool = False) -> Mapping[str, Promised]:
    """Return each ``INDEX`` or ``TRIGGER`` by its name, as the last script that ran leaves it."""
    found: dict[str, Promised] = {}
    sql = resource_folder("sql")
    for script in [*sorted((sql / "migrations").glob("*.sql")), *[sql / "partitions.sql"] * partitioned]:
        for statement in _STATEMENT.finditer(script.read_text(encoding="utf-8")):
            verb, what, name = statement.groups()
            if what != kind:
                continue
            found.pop(name, None)
            relation = _RELATION.search(statement[0])
            if verb == "CREATE" and relation:
                found[name] = Promised(relation=relation[1], sql=statement[0].lstrip())
    return found
