"""Reads the tests' marks, without running a test: the clauses and the faults that each test proves."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULT_ROW = re.compile(r"^(\| ([A-Z]\d\d) \|.*\|)(.*)\|$")
"""A row of the catalogue of faults: all but its last column, its id, and the last column."""


@cache
def marks_of_tests() -> Mapping[str, Mapping[str, list[str]]]:
    """Return for every test, as ``path::name``, the text of its marks by the mark's name."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{name}": _marks(function)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, function in _functions(ast.parse(path.read_text()))
    }


def proofs_by(mark: str) -> dict[str, list[str]]:
    """Return the tests by the text of a mark."""
    found = defaultdict(list)
    for test, marks in marks_of_tests().items():
        for text in marks.get(mark, ()):
            found[text].append(test)
    return dict(found)


def with_tests_of_faults(page: str) -> str:
    """Return the catalogue of faults with the tests that cause each fault in the row's last column."""
    tests = proofs_by("fault")
    return "".join(_completed(line, tests) for line in page.splitlines(keepends=True))


def _completed(line: str, tests: Mapping[str, list[str]]) -> str:
    row = FAULT_ROW.match(line)
    return f"{row[1]} {'<br>'.join(f'`{test}`' for test in tests.get(row[2], []))} |\n" if row else line


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_"):
                yield prefix + one.name, one


def _marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[str]]:
    """Read the decorators ``@pytest.mark.name("text")``."""
    found = defaultdict(list)
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr=name),
                args=[ast.Constant(value=str(text)), *_],
            ):
                found[name].append(text)
    return dict(found)
