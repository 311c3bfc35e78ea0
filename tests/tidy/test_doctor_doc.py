"""docs/reference/doctor.md lists every finding as the package `bootstrap.doctor` has it."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from sea_mq_worker.bootstrap.doctor import KINDS, Finding

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "doctor.md"
BEGIN, END = "<!-- findings -->\n", "<!-- end of findings -->"
REGENERATE = "docs/reference/doctor.md differs from the code: run python -m tests.tidy.test_doctor_doc"


def table() -> str:
    """Write one row a kind, in the order of the code."""
    rows = [
        f"| `{kind.slug}` | {kind.severity} | {kind.sought} | {kind.why} | {kind.mend} |" for kind in KINDS
    ]
    head = ["| slug | severity | found | why it matters | what mends it |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def parts() -> tuple[str, str, str]:
    """Take the document apart: before the table, the table, behind it."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    written, _, behind = rest.partition(END)
    return before, written, behind


def keys() -> Iterator[str]:
    """Read the keys of `--json` from their table."""
    rows = parts()[0].partition("| key |")[2].splitlines()
    return (line.split("`")[1] for line in rows if line.startswith("| `"))


def test_the_document_lists_the_findings_as_they_are() -> None:
    assert parts()[1] == table(), REGENERATE


def test_the_document_lists_the_keys_of_a_finding() -> None:
    assert list(keys()) == [field.name for field in fields(Finding)]


def test_no_two_findings_have_one_name() -> None:
    assert len({kind.slug for kind in KINDS}) == len(KINDS)


if __name__ == "__main__":
    head, _, tail = parts()
    DOCUMENT.write_text(f"{head}{BEGIN}{table()}{END}{tail}")
