"""The catalogue of faults has a test for every row, and a row for every test that causes a fault."""

import re

from tools.docs.pages import FAULTS, ROOT
from tools.docs.proofs import FAULT_ROW, proofs_by

GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"


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
