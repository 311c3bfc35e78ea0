"""docs/proof/faults.md names the tests that cause each fault, and every test that says so is there."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.tidy.test_conformance import functions

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "proof" / "faults.md"
GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"
ROW = re.compile(r"^(\| ([A-Z]\d\d) \|.*\|)(.*)\|$")
REGENERATE = "docs/proof/faults.md differs from the tests: run python -m tests.tidy.test_faults"


def proofs() -> dict[str, list[str]]:
    """Collect the tests of each fault, without running anything."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = path.relative_to(ROOT).as_posix()
        for name, function in functions(ast.parse(path.read_text())):
            for fault in faults(function):
                found[fault].append(f"`{module}::{name}`")
    return found


def faults(function: ast.AST) -> list[str]:
    """Read the ids of `@pytest.mark.fault(...)`."""
    return [
        ast.literal_eval(decorator.args[0])
        for decorator in getattr(function, "decorator_list", ())
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault"
    ]


def completed(text: str) -> str:
    """Write the proofs into the rows."""
    known = proofs()
    return "".join(_completed(line, known) for line in text.splitlines(keepends=True))


def _completed(line: str, known: dict[str, list[str]]) -> str:
    row = ROW.match(line)
    return f"{row[1]} {'<br>'.join(known.get(row[2], []))} |\n" if row else line


def documented() -> list[str]:
    """Return the ids of the document's rows."""
    return [row[2] for line in DOCUMENT.read_text().splitlines() if (row := ROW.match(line))]


def test_each_fault_has_its_proofs_in_the_document() -> None:
    assert DOCUMENT.read_text() == completed(DOCUMENT.read_text()), REGENERATE


def test_no_fault_is_without_a_proof_and_no_proof_without_a_fault() -> None:
    assert sorted(documented()) == sorted(proofs())


def test_what_is_guaranteed_of_pauses_and_ends_is_proven() -> None:
    text = GUARANTEES.read_text().partition("## What pauses")[2].partition("\n## ")[0]
    named = re.findall(r"\b[A-Z]\d\d\b", text)
    assert len(named) > 20
    assert set(named) <= set(documented())


if __name__ == "__main__":
    DOCUMENT.write_text(completed(DOCUMENT.read_text()))
