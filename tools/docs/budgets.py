"""The table of budgets that `tests/counters` checks."""

from tests.counters import budgets
from tests.counters.budgets import Budget
from tools.docs.markdown import table


def table_of_budgets() -> str:
    """Return a row for each budget, in the order of the module."""
    every = [value for value in vars(budgets).values() if isinstance(value, Budget)]
    return table(
        ("what", "at most", "why"), ((budget.what, f"{budget.most:.4g}", budget.why) for budget in every)
    )
