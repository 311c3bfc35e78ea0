"""Reads the tests' marks, without running a test: the clauses and the faults that each test proves."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^(- \*\*([\w-]+(?:, [\w-]+)*)\*\*(?: .*?)?)((?:<br>`[^`]+`)*)$")
"""An entry of a catalogue: its ids and text, the ids alone, and the tests."""
PLACE = re.compile(r"by documentation: \[[^\]]+\]\(([^)#]+)\)$")
"""The end of an entry that a document meets."""


@cache
def marks_of_tests() -> Mapping[str, Mapping[str, list[str]]]:
    """Return for every test, as ``path::name``, the texts of its marks by the mark's name."""
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
    """Return the catalogue of faults with the tests that cause each."""
    return _with_tests(page, proofs_by("fault"))


def with_tests_of_clauses(page: str) -> str:
    """Return the catalogue of clauses with the tests that prove each."""
    return _with_tests(page, proofs_by("clause"))


def _with_tests(page: str, tests: Mapping[str, list[str]]) -> str:
    return "".join(_completed(line, tests) for line in page.splitlines(keepends=True))


def _completed(line: str, tests: Mapping[str, list[str]]) -> str:
    row = ROW.match(line)
    if not row:
        return line
    found = dict.fromkeys(f"<br>`{test}`" for id_ in row[2].split(", ") for test in tests.get(id_, ()))
    return f"{row[1]}{''.join(found)}\n"


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_"):
                yield prefix + one.name, one


def _marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[str]]:
    """Read the decorators ``@pytest.mark.name("text", ...)``."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr=name),
                args=texts,
            ):
                found[name] += [
                    one.value for one in texts if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
    return dict(found)
