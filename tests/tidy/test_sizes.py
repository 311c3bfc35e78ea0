"""The tree stays readable: sizes within bounds, nothing left undone, imports one way."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("sea_mq_worker", "examples", "benchmarks", "kit", "tests", "tools")
MODULE_LINES_MIN = 30
MODULE_LINES_MAX = 700
TEST_MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
TEST_FUNCTION_LINES_MAX = 80
PACKAGE = "sea_mq_worker"
SHORT_FOLDERS = {"ports": "a port is as long as its contract", "testing": "a fake is as long as its port"}
SHORT_MODULES = {
    "cli/signals.py": "several commands share it",
    "connections/postgres.py": "one module for each server",
    "domain/error_fingerprint.py": "diagnostics and dead letters use it",
    "domain/uuid7.py": "modules that have nothing else in common use it",
    "resources.py": "the lowest layer, which everything may import",
}
"""Modules below the floor, and why. An entry that is no longer needed has to go: the list only shrinks."""
LEFT_UNDONE = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
TEXTS = {".py", ".sql", ".md", ".toml", ".yml", ".yaml", ".json", ".html", ".sh", ".conf", ""}

Function = ast.FunctionDef | ast.AsyncFunctionDef

modules = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    """Return the module's functions, nested ones too."""
    return _functions(ast.parse(path.read_text()))


def _functions(node: ast.AST) -> Iterator[Function]:
    """Descend into statements alone: no expression holds a function with a name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _functions(child)


def lines(function: Function) -> int:
    """Count the lines from `def` to the end, without the docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return total - (((first.end_lineno or first.lineno) - first.lineno + 1) if has_docstring else 0)


def module_lines_max(path: Path) -> int:
    return TEST_MODULE_LINES_MAX if path.is_relative_to(ROOT / "tests") else MODULE_LINES_MAX


def longest(path: Path) -> int:
    is_test = path.is_relative_to(ROOT / "tests")
    return TEST_FUNCTION_LINES_MAX if is_test else FUNCTION_LINES_MAX


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_modules_are_short() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in modules} == set(SOURCES)
    sizes = {path: len(path.read_text().splitlines()) for path in modules}
    assert {name(path): size for path, size in sizes.items() if size > module_lines_max(path)} == {}


def test_no_module_is_a_fragment() -> None:
    """A module below the floor belongs to the module that uses it, or gives a reason."""
    base = ROOT / PACKAGE
    short = {
        path.relative_to(base).as_posix()
        for path in base.rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
        and path.relative_to(base).parent.as_posix() not in SHORT_FOLDERS
        and len(path.read_text().splitlines()) < MODULE_LINES_MIN
    }
    assert short - SHORT_MODULES.keys() == set(), "join it to the module that uses it"
    assert SHORT_MODULES.keys() - short == set(), "take it off the list"


def test_functions_are_short() -> None:
    sizes = {
        f"{name(path)}: {f.name}": (lines(f), longest(path)) for path in modules for f in functions(path)
    }
    assert {function: size for function, (size, bound) in sizes.items() if size > bound} == {}


def test_nothing_is_left_undone() -> None:
    """A note to oneself belongs to an issue tracker."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    texts = [ROOT / name for name in listed.stdout.split() if Path(name).suffix in TEXTS]
    assert texts
    marks = {
        name(path): found
        for path in texts
        if path.is_file() and (found := LEFT_UNDONE.findall(path.read_text()))
    }
    assert marks == {}
