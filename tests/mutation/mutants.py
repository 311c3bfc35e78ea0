"""Mutants: single mistakes in the code, each with the test that has to notice it."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake.

    Attributes:
        name: how the mutated code misbehaves.
        file: where, from the root of the tree.
        text: what stands there exactly once.
        replacement: what stands there instead.
        killed_by: the test that fails then, ``path::function``.
    """

    name: str
    file: str
    text: str
    replacement: str
    killed_by: str

    def problem(self) -> str | None:
        """Tell why it cannot be tried on today's tree, or None."""
        path = ROOT / self.file
        occurrences = path.read_text().count(self.text) if path.is_file() else 0
        if occurrences != 1:
            return (
                f"{self.name}: its text occurs {occurrences} times in {self.file}, not once: follow the code"
            )
        if self.text == self.replacement:
            return f"{self.name}: its replacement changes nothing"
        module, _, function = self.killed_by.partition("::")
        if function not in _functions(ROOT / module):
            return f"{self.name}: there is no test {self.killed_by}: name the test that has to fail"
        return None

    def applied_to(self, tree: Path) -> str:
        """Return the mutated text of its file in ``tree``."""
        return (tree / self.file).read_text().replace(self.text, self.replacement)


def load(path: Path = LIST) -> list[Mutant]:
    """Read the list."""
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text())["mutant"]]


def problems(mutants: list[Mutant]) -> list[str]:
    """Tell what keeps mutants from being tried, without running anything."""
    names = [mutant.name for mutant in mutants]
    twice = [f"{name}: the name is used twice" for name in sorted({n for n in names if names.count(n) > 1})]
    return twice + [problem for mutant in mutants if (problem := mutant.problem())]


def _functions(module: Path) -> set[str]:
    if not module.is_file():
        return set()
    nodes = ast.walk(ast.parse(module.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
