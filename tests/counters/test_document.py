"""docs/proof/budgets.md lists the budgets as `tests/counters/budgets.py` has them."""

from pathlib import Path

from tests.counters import budgets
from tests.counters.budgets import Budget

DOCUMENT = Path(__file__).parents[2] / "docs" / "proof" / "budgets.md"
BEGIN, END = "<!-- budgets -->\n", "<!-- end of budgets -->"
REGENERATE = "docs/proof/budgets.md differs from budgets.py: run python -m tests.counters.test_document"


def table() -> str:
    """Write one row a budget, in the order of the module."""
    every = [value for value in vars(budgets).values() if isinstance(value, Budget)]
    rows = [f"| {budget.what} | {budget.most:.4g} | {budget.why} |" for budget in every]
    return "\n".join(["| what | at most | why |", "|---|---|---|", *rows, ""])


def rewritten(text: str) -> str:
    """Put the table into the document."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def test_the_document_lists_the_budgets_as_they_are() -> None:
    assert DOCUMENT.read_text() == rewritten(DOCUMENT.read_text()), REGENERATE


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
