"""Prints how large the product is: lines, files, names imported per 100 lines of code, classes; words.

"Code" is all lines but blanks, imports, docstrings and comments on lines of their own.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "sea_mq_worker"
SMALL = 80
"""A file of fewer lines counts as small, unless it is an `__init__.py`."""


@dataclass(frozen=True)
class Module:
    """One file of Python, counted."""

    path: Path
    lines: int
    code: int
    names: int
    """Names that it imports."""
    classes: int
    functions: dict[str, int]
    """The lines of each function by `name:line`, from `def` to its end, without the docstring."""

    @property
    def small(self) -> bool:
        """Whether the file needs a reason to be one."""
        return self.lines < SMALL and self.path.name != "__init__.py"


def names_per_100_lines(modules: Iterable[Module]) -> float:
    """Return the density of reference: imported names for each 100 lines of code."""
    modules = list(modules)
    return 100 * sum(m.names for m in modules) / max(1, sum(m.code for m in modules))


def measure(path: Path) -> Module:
    """Read one file of Python."""
    text = path.read_text()
    lines, frame, texts = text.splitlines(), set[int](), set[int]()
    names = classes = 0
    functions = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            frame |= set(_span(node))
            names += len(node.names)
        elif _is_text(node):
            frame |= set(_span(node))
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = _span(node.body[0]) if _is_text(node.body[0]) else range(0)
            functions[f"{node.name}:{node.lineno}"] = len(_span(node)) - len(docstring)
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
            texts |= set(_span(node))
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if not bare or (bare.startswith("#") and number not in texts):
            frame.add(number)
    return Module(path, len(lines), len(lines) - len(frame), names, classes, functions)


def _span(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", None) or 0) + 1)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def parts() -> dict[str, list[Module]]:
    """Return the checkout's Python by what it is for."""
    return {
        "worker": [m for m in _modules(PACKAGE) if not _of_pipeline(m)],
        "pipeline": [m for m in _modules(PACKAGE) if _of_pipeline(m)],
        "tests, tools": [m for m in _modules("tests", "tools") if not _of_pipeline(m)],
        "pipeline's tests": [m for m in _modules("tests") if _of_pipeline(m)],
        "benchmarks": list(_modules("benchmarks")),
    }


def _modules(*folders: str) -> Iterator[Module]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield measure(path)


def _of_pipeline(module: Module) -> bool:
    """A folder of the name, or a file beside others: `cli/pipeline.py`."""
    return any(part.partition(".")[0] == "pipeline" for part in module.path.relative_to(ROOT).parts)


def words() -> int:
    """Count the words of all documents but the changelog."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    documents = (ROOT / name for name in listed.stdout.splitlines() if name != "CHANGELOG.md")
    return sum(len(path.read_text().split()) for path in documents if path.is_file())


def report() -> str:
    """Return the table of sizes."""
    rows = [f"{'':18}{'lines':>7}{'files':>7}{'below 80':>10}{'names/100':>11}{'classes':>9}"]
    for part, modules in parts().items():
        lines, small = sum(m.lines for m in modules), sum(m.small for m in modules)
        density, classes = names_per_100_lines(modules), sum(m.classes for m in modules)
        rows.append(f"{part:18}{lines:7}{len(modules):7}{small:10}{density:11.1f}{classes:9}")
    return "\n".join([*rows, f"{'documents':18}{words():7} words"])


if __name__ == "__main__":
    sys.stdout.write(f"{report()}\n")
