"""Statements of ``sql/queries`` are loaded and bound."""

import re
from dataclasses import dataclass, fields
from uuid import UUID

import pytest

from sea_mq_worker.operators.records import InboxFilter, OutboxFilter
from sea_mq_worker.postgres import queries
from sea_mq_worker.postgres.queries import NamedQuery, load_named

FILE = """-- A file.

-- fragment: is_dead
NOT o.is_open AND o.ordering_key = :key::text

-- name: dead
-- Says :nothing.
SELECT ':key', o.id::text FROM outbox_events o
 WHERE :is_dead AND o.id = ANY (:ids::uuid[]) AND o.ordering_key <> :key
 LIMIT :limit;
"""
FILES = sorted(queries._FILES)
EVERY = [(f"{file}.{name}", query) for file in FILES for name, query in load_named(file).items()]


@dataclass
class Filter:
    key: str
    ids: tuple[UUID, ...]


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> NamedQuery:
    monkeypatch.setitem(queries._FILES, "example", FILE)  # type: ignore[index]
    return load_named("example")["dead"]


def test_parameters_are_numbered_by_their_first_use_and_fragments_are_filled_in(dead: NamedQuery) -> None:
    assert dead.parameters == ("key", "ids", "limit")
    assert dead.sql == (
        "SELECT ':key', o.id::text FROM outbox_events o\n"
        " WHERE NOT o.is_open AND o.ordering_key = $1::text"
        " AND o.id = ANY ($2::uuid[]) AND o.ordering_key <> $1\n"
        " LIMIT $3"
    )


def test_arguments_are_values_by_name_and_else_attributes(dead: NamedQuery) -> None:
    which = Filter(key="a", ids=(UUID(int=1),))
    assert dead.bind(which, limit=9) == (dead.sql, "a", [str(UUID(int=1))], 9)
    assert dead.bind(which, limit=9, key="b")[1] == "b"


def test_a_missing_parameter_is_an_error(dead: NamedQuery) -> None:
    with pytest.raises(AttributeError, match="limit"):
        dead.bind(Filter(key="a", ids=()))


@pytest.mark.parametrize("file", FILES)
def test_every_statement_of_a_file_has_a_name_of_its_own(file: str) -> None:
    assert len(load_named(file)) == len(re.findall("(?m)^-- name: ", queries._FILES[file]))


@pytest.mark.parametrize(("name", "query"), EVERY, ids=[name for name, _ in EVERY])
def test_parameters_of_a_statement_are_either_all_named_or_all_numbered(name: str, query: NamedQuery) -> None:
    assert not (query.parameters and re.search(r"\$\d", query.text)), name


@pytest.mark.parametrize(
    ("statement", "which", "elsewhere"),
    [
        ("operators.choose", OutboxFilter, {"before_id"}),
        ("operators.list_outbox", OutboxFilter, set()),
        (
            "operators.list_outbox_by_id",
            OutboxFilter,
            {"ids", "correlation_id", "before_id", "since", "until"},
        ),
        ("operators.list_inbox", InboxFilter, set()),
        ("operators.list_inbox_by_id", InboxFilter, {"ids", "before_id", "since", "until"}),
    ],
)
def test_a_statement_that_chooses_rows_applies_every_filter(
    statement: str, which: type[OutboxFilter | InboxFilter], elsewhere: set[str]
) -> None:
    """A filter that a statement did not know would choose more rows than asked for.

    ``elsewhere``: other statements serve these, or the range of ids covers them.
    """
    names = {one.name for one in fields(which)}
    assert names - set(dict(EVERY)[statement].parameters) == elsewhere
