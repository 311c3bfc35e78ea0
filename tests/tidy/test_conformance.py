"""The catalogues of clauses and faults name the tests that are marked with them, and miss none."""

import re
from pathlib import Path

import pytest

from tools.docs.pages import CONFORMANCE, FAULTS
from tools.docs.proofs import PLACE, ROW, proofs_by


def rows(page: Path) -> list[re.Match[str]]:
    """Return the entries of a catalogue."""
    return [row for line in page.read_text().splitlines() if (row := ROW.match(line))]


def ids(page: Path) -> list[str]:
    return [id_ for row in rows(page) for id_ in row[2].split(", ")]


@pytest.mark.parametrize(("page", "mark"), [(CONFORMANCE, "clause"), (FAULTS, "fault")])
def test_no_row_is_without_a_proof_and_no_mark_without_a_row(page: Path, mark: str) -> None:
    assert [row[2] for row in rows(page) if not row[3] and not PLACE.search(row[1])] == []
    assert len(set(ids(page))) == len(ids(page)) > 90
    assert proofs_by(mark).keys() - set(ids(page)) == set()


@pytest.mark.parametrize(
    "given",
    [f"{side}-047-00{n}" for side, last in (("POL", 7), ("PORT", 5)) for n in range(1, last + 1)]
    + ["CMD-050", "CMD-051", "CMD-052", "QRY-050", "QRY-051", "EVT-047-001", "EVT-047-002"],
)
def test_each_of_sds_047s_ids_has_its_row(given: str) -> None:
    assert given in ids(CONFORMANCE)
