"""The documents name a test for every clause and every fault, and every test that claims one."""

import re
from dataclasses import dataclass

import pytest

from tools.docs.pages import FAULTS
from tools.docs.proofs import FAULT_ROW, ROOT, marks_of_tests, proofs_by

GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"
MAP = ROOT / "docs" / "proof" / "conformance.md"
TEST = re.compile(r"`(tests/[\w/]+\.py::[\w:]+)`")
PLACE = re.compile(r"by documentation: \[[^\]]+\]\(([^)#]+)\)")


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    clause: str
    proof: str


def rows() -> list[Row]:
    """Read the tables' rows, without their heads."""
    cells = [line.strip("|").split(" | ") for line in MAP.read_text().splitlines() if line.startswith("| ")]
    named = [tuple(cell.strip() for cell in row) for row in cells]
    return [Row(*row) for row in named if row[0] != "id"]


def test_every_row_names_its_proof() -> None:
    bare = [row.id for row in rows() if not TEST.search(row.proof) and not PLACE.fullmatch(row.proof)]
    assert bare == []


def test_ids_are_used_once() -> None:
    ids = [row.id for row in rows()]
    assert len(ids) > 100
    assert len(set(ids)) == len(ids)


def test_every_named_test_exists() -> None:
    named = {name for row in rows() for name in TEST.findall(row.proof)}
    assert named - marks_of_tests().keys() == set()


def test_every_named_place_exists() -> None:
    places = {place for row in rows() for place in PLACE.findall(row.proof)}
    assert places
    assert {place for place in places if not (MAP.parent / place).is_file()} == set()


def test_every_test_that_claims_a_clause_is_in_the_map() -> None:
    named = {name for row in rows() for name in TEST.findall(row.proof)}
    missing = [
        f"{name}: {text}"
        for name, marks in marks_of_tests().items()
        for text in marks.get("clause", ())
        if name not in named
    ]
    if missing:
        pytest.fail("add to the row of its clause in docs/proof/conformance.md:\n" + "\n".join(missing))


@pytest.mark.parametrize(
    "given",
    [f"{side}-047-00{n}" for side, last in (("POL", 7), ("PORT", 5)) for n in range(1, last + 1)]
    + ["CMD-050", "CMD-051", "CMD-052", "QRY-050", "QRY-051", "EVT-047-001", "EVT-047-002"],
)
def test_each_of_sds_047s_ids_has_its_row(given: str) -> None:
    assert given in {row.id for row in rows()}


# --- the catalogue of faults


def documented() -> list[str]:
    """Return the ids of the catalogue's rows."""
    return [row[2] for line in FAULTS.read_text().splitlines() if (row := FAULT_ROW.match(line))]


def test_no_fault_is_without_a_proof_and_no_proof_without_a_fault() -> None:
    assert sorted(documented()) == sorted(proofs_by("fault"))


def test_what_is_guaranteed_of_pauses_and_ends_is_proven() -> None:
    text = GUARANTEES.read_text().partition("## What pauses")[2].partition("\n## ")[0]
    named = re.findall(r"\b[A-Z]\d\d\b", text)
    assert len(named) > 20
    assert set(named) <= set(documented())
