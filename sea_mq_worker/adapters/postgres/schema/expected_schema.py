"""Expected indexes, triggers, functions and constraints, read from the migration scripts."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sea_mq_worker.adapters.postgres.schema.migrations import migrations

TABLES = (
    "sea_mq_migrations",
    "sea_mq_context",
    "sea_mq_consumers",
    "sea_mq_standings",
    "sea_mq_sessions",
    "outbox_events",
    "inbox_messages",
    "handled_messages",
    "operator_actions",
)

_STATEMENT = re.compile(r"^ *(CREATE|DROP) (?:OR REPLACE |UNIQUE )?(INDEX|TRIGGER) (\w+)[^;]*;", re.MULTILINE)
_RELATION = re.compile(r"\bON (\w+)")
_FUNCTION = re.compile(
    r"^CREATE (?:OR REPLACE )?(FUNCTION (\w+)\(.*?AS \$\$(.*?)\$\$);", re.MULTILINE | re.DOTALL
)
_OWN_PATH = re.compile(r"SET search_path = ([^;]*?) AS \$\$")
_NOT_FOR_ALL = re.compile(r"^REVOKE ALL ON FUNCTION ([\w, ]+)\s+FROM PUBLIC;", re.MULTILINE)
_TABLE = re.compile(r"^CREATE (?:UNLOGGED )?TABLE (\w+) \((.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN_ADDED = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN ([^;]*);", re.MULTILINE)
_NAMED = re.compile(r'CONSTRAINT "?(\w+)"? (.*)', re.DOTALL)
_CHECK = re.compile(r"(?:CONSTRAINT (\w+) )?(CHECK \(.*)", re.DOTALL)
_CAST = re.compile(r"::\w+(\[\])?")
_ANY = re.compile(r"=ANYARRAY\[(.*?)\]")

SCHEMA = ":schema"
"""Placeholder for the schema's own name in a search path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedObject:
    """An index, trigger or constraint: its table, and the statement that creates it.

    ``definition`` is the definition of a constraint in the form of ``canonical``.
    """

    relation: str
    sql: str
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFunction:
    """A function: its body, its search path, and the statements that create it."""

    body: str
    search_path: str
    sql: str


@functools.cache
def expected_objects(kind: str) -> Mapping[str, ExpectedObject]:
    """Return each ``INDEX`` or ``TRIGGER`` by name, as the last script leaves it."""
    found: dict[str, ExpectedObject] = {}
    for script in migrations():
        for statement in _STATEMENT.finditer(script.sql):
            verb, what, name = statement.groups()
            if what != kind:
                continue
            found.pop(name, None)
            relation = _RELATION.search(statement[0])
            if verb == "CREATE" and relation:
                found[name] = ExpectedObject(relation=relation[1], sql=statement[0].lstrip())
    return found


@functools.cache
def expected_functions() -> Mapping[str, ExpectedFunction]:
    """Return each function by name; one without a search path of its own gets the schema's."""
    found = {}
    for script in migrations():
        closed = set(re.findall(r"\w+", " ".join(_NOT_FOR_ALL.findall(script.sql))))
        for text, name, body in _FUNCTION.findall(script.sql):
            own = _OWN_PATH.search(text)
            path = own[1] if own else f"pg_catalog, {SCHEMA}, pg_temp"
            sql = f"CREATE OR REPLACE {text};\nALTER FUNCTION {name} SET search_path = {path}"
            if name in closed:
                sql += f";\nREVOKE ALL ON FUNCTION {name} FROM PUBLIC"
            found[name] = ExpectedFunction(body=body, search_path=path, sql=sql)
    return found


@functools.cache
def expected_constraints() -> Mapping[tuple[str, str], ExpectedObject]:
    """Return each constraint by table and name; a NOT NULL constraint has its column's name."""
    found = {}
    for script in migrations():
        text = re.sub(r"--.*", "", script.sql)
        items = [(table, item) for table, body in _TABLE.findall(text) for item in _items(body)]
        for table, item in [*items, *_COLUMN_ADDED.findall(text)]:
            for name, definition in _constraints(table, item.strip()):
                made = f'ADD CONSTRAINT "{name}" {definition}'
                sql = f"ALTER {name} SET NOT NULL" if definition == "NOT NULL" else made
                found[table, name] = ExpectedObject(relation=table, sql=sql, definition=canonical(definition))
    return found


def canonical(definition: str) -> str:
    """Normalize a constraint for comparison: PostgreSQL adds casts and brackets, and rewrites IN."""
    bare = re.sub(r"[\s()]", "", _CAST.sub("", definition))
    return _ANY.sub(r"IN\1", bare)


def _constraints(table: str, item: str) -> Iterator[tuple[str, str]]:
    if named := _NAMED.fullmatch(item):
        yield named[1], named[2]
        return
    if item.startswith("PRIMARY KEY"):
        yield f"{table}_pkey", item
        return
    column, _, rest = item.partition(" ")
    if "PRIMARY KEY" in rest:
        yield f"{table}_pkey", f"PRIMARY KEY ({column})"
    if "NOT NULL" in rest:
        yield column, "NOT NULL"
    if check := _CHECK.search(rest):
        yield check[1] or f"{table}_{column}_check", check[2]


def _items(body: str) -> Iterator[str]:
    """Split columns and constraints at the commas outside brackets."""
    depth, item = 0, ""
    for char in body:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            yield item
            item = ""
        else:
            item += char
    yield item
