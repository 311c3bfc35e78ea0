"""The tree stays readable: sizes within bounds, and two ratchets that only go down."""

from functools import cache
from pathlib import Path

from tools.size import Module, measure, names_per_100_lines, parts

ROOT = Path(__file__).parents[2]
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
TEST_FUNCTION_LINES_MAX = 80

# Lower a ratchet whenever the worker's figure is below it (`python -m tools.size`); never raise it.
NAMES_PER_100_LINES_MAX = 14.9
"""Names that the worker imports for each 100 lines of its code."""
SMALL_FILES_MAX = 12
"""Files of the worker with fewer than 80 lines."""


@cache
def modules() -> dict[str, Module]:
    """Return every module of the checkout by its path."""
    examples = [measure(path) for path in (ROOT / "examples").rglob("*.py")]
    counted = [module for part in parts().values() for module in part] + examples
    return {str(module.path.relative_to(ROOT)): module for module in counted}


def test_no_module_is_too_long_to_be_one_story() -> None:
    assert {name: m.lines for name, m in modules().items() if m.lines > MODULE_LINES_MAX} == {}


def test_no_function_is_longer_than_a_page() -> None:
    def bound(name: str) -> int:
        return TEST_FUNCTION_LINES_MAX if name.startswith("tests/") else FUNCTION_LINES_MAX

    assert {
        f"{name}: {function}": lines
        for name, module in modules().items()
        for function, lines in module.functions.items()
        if lines > bound(name)
    } == {}


def test_the_worker_imports_no_more_names_for_its_code() -> None:
    assert names_per_100_lines(parts()["worker"]) <= NAMES_PER_100_LINES_MAX


def test_the_worker_has_no_more_small_files() -> None:
    small = [str(m.path.relative_to(ROOT)) for m in parts()["worker"] if m.small]
    assert len(small) <= SMALL_FILES_MAX, small
