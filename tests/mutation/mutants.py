"""Mutants: single mistakes in the code, each with the test that has to notice it."""

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")

_QUERIES = "sql/queries/"
_STATEMENTS = re.compile(r"^(?=-- (?:name|fragment): )", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_PARAMETER = re.compile(r"\$\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake.

    Attributes:
        name: how the mutated code misbehaves.
        file: where, from the root of the tree.
        statement: the statement or fragment of a file in sql/queries.
        text: what stands there exactly once.
        replacement: what stands there instead.
        killed_by: the test that fails then, ``path::function``.
    """

    name: str
    file: str
    text: str
    replacement: str
    killed_by: str
    statement: str = ""

    def problem(self) -> str | None:
        """Tell why it cannot be tried on today's tree, or None."""
        path = ROOT / self.file
        part = self._part(path.read_text()) if path.is_file() else ""
        occurrences = part.count(self.text)
        if occurrences != 1:
            where = f"{self.statement} in {self.file}" if self.statement else self.file
            return f"{self.name}: its text occurs {occurrences} times in {where}, not once: follow the code"
        if self.text == self.replacement:
            return f"{self.name}: its replacement changes nothing"
        if self.file.startswith(_QUERIES) and not self._keeps_parameters(part):
            return f"{self.name}: PostgreSQL would refuse it: keep the parameters of {self.statement}"
        module, _, function = self.killed_by.partition("::")
        if function not in _functions(ROOT / module):
            return f"{self.name}: there is no test {self.killed_by}: name the test that has to fail"
        return None

    def applied_to(self, tree: Path) -> str:
        """Return the mutated text of its file in ``tree``."""
        text = (tree / self.file).read_text()
        part = self._part(text)
        return text.replace(part, part.replace(self.text, self.replacement))

    def _part(self, text: str) -> str:
        """Return where its text is looked for: one statement of several, or the whole file."""
        if not self.file.startswith(_QUERIES):
            return text
        begins = tuple(f"-- {kind}: {self.statement}\n" for kind in ("name", "fragment"))
        return next((part for part in _STATEMENTS.split(text) if part.startswith(begins)), "")

    def _keeps_parameters(self, part: str) -> bool:
        """A statement that takes fewer parameters than it is given fails every test, whatever the mistake."""
        before, after = (
            set(_PARAMETER.findall(_COMMENT.sub("", text)))
            for text in (part, part.replace(self.text, self.replacement))
        )
        return before == after


def load(path: Path = LIST) -> list[Mutant]:
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
