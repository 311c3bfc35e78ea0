"""Mutants: single mistakes in the code, each with the test that has to notice it.

A mutant names no file. Its code is looked for by its form in all modules, or in the functions and classes of
one name; its SQL in the statements of one name. So it survives a move, another format and another local name.

In code, a capital letter stands for any expression, the same one where it is repeated; leading underscores of
names are not compared. In SQL, ``$A`` stands for any parameter, and whitespace is compared as one blank.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")

_STATEMENTS = re.compile(r"^(?=-- (?:name|fragment): )", re.MULTILINE)
_STATEMENT = re.compile(r"-- (?:name|fragment): (\w+)")
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_ANY_PARAMETER = re.compile(r"\\?\$([A-Z])\b")
_UNCOMPARED = {"ctx", "kind", "type_comment"}


class NoPlaceError(Exception):
    """A mutant cannot be tried on today's tree; the text says why."""


class _Place(NamedTuple):
    """A node, or nodes from ``at`` on: values of a field of ``parent``, in the definitions ``within``."""

    within: str
    parent: ast.AST
    field: str
    nodes: list[Any]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake.

    Attributes:
        name: how the mutated code misbehaves.
        code: an expression or statements that stand once in the modules or, with ``sql``, in the statement.
        becomes: what stands there instead.
        killed_by: the test that fails then; ``module::test`` where two tests have its name.
        function: the function or class that has the code, where the code alone is found more than once; its
            class, module or packages may stand before it: ``package.Class.method``.
        sql: a statement or fragment, or a file without names; its file or folders may stand before it.
    """

    name: str
    code: str
    becomes: str
    killed_by: str
    function: str = ""
    sql: str = ""

    def planted(self) -> tuple[Path, str]:
        """Return the file that has the mistake, from the root, and its whole text with it.

        Raises:
            NoPlaceError: the mutant does not follow the code.
        """
        path, before, after = self._in_sql() if self.sql else self._in_code()
        if before == after:
            raise NoPlaceError("what its code becomes is the same")
        return path.relative_to(ROOT), after

    def test(self) -> str:
        """Return the test that has to fail, as pytest takes it.

        Raises:
            NoPlaceError: there is no such test, or several.
        """
        module, _, function = self.killed_by.rpartition("::")
        found = [path for path in _tests().get(function, ()) if module in {"", path.stem}]
        self._require_one(found, f"test {self.killed_by}")
        return f"{found[0].relative_to(ROOT)}::{function}"

    def problem(self) -> str | None:
        """Tell why it cannot be tried on today's tree, or None."""
        try:
            self.test()
            self.planted()
        except NoPlaceError as error:
            return f"{self.name}: {error}"
        return None

    def _in_code(self) -> tuple[Path, str, str]:
        pattern, words = _parsed(self.code), set(re.findall(r"[A-Za-z]\w+", self.code))
        paths = [path for path in _modules() if words <= _words(path)]
        found = [(path, *match) for path in paths for match in _matches(path, pattern, self.function)]
        self._require_one(found, f"code {self.code!r} in {self.function or 'all modules'}")
        path, (_, parent, field, nodes, at), count, bound = found[0]
        original, is_list = nodes[:], isinstance(getattr(parent, field), list)
        before = ast.unparse(_module(path))
        nodes[at : at + count] = [_filled(node, bound) for node in _parsed(self.becomes)]
        setattr(parent, field, nodes if is_list else nodes[0])
        after = ast.unparse(_module(path))
        nodes[:] = original
        setattr(parent, field, nodes if is_list else nodes[0])
        return path, before, after

    def _in_sql(self) -> tuple[Path, str, str]:
        text = r"\s+".join(map(re.escape, self.code.split()))
        pattern = re.compile(_ANY_PARAMETER.sub(r"(?P<\1>\\$\\d+)", text))
        statements = [(path, part) for name, path, part in _sql() if _is_named(self.sql, name)]
        found = [(path, part, match) for path, part in statements for match in pattern.finditer(part)]
        self._require_one(found, f"code {self.code!r} in statement {self.sql}")
        path, part, match = found[0]
        mistake = _ANY_PARAMETER.sub(lambda letter: match[letter[1]], self.becomes)
        after = part[: match.start()] + mistake + part[match.end() :]
        # A statement that takes fewer parameters than it is given fails every test, whatever the mistake.
        if _parameters(part) != _parameters(after):
            raise NoPlaceError(f"PostgreSQL would refuse it: keep the parameters of {self.sql}")
        whole = path.read_text()
        return path, whole, whole.replace(part, after, 1)

    def _require_one(self, found: list[Any], what: str) -> None:
        if len(found) != 1:
            raise NoPlaceError(f"there are {len(found)}, not one, of {what}: follow the code")


def load(path: Path = LIST) -> list[Mutant]:
    return [Mutant(name=name, **entry) for name, entry in tomllib.loads(path.read_text()).items()]


def problems(mutants: list[Mutant]) -> list[str]:
    """Tell what keeps mutants from being tried, without running anything."""
    return [problem for mutant in mutants if (problem := mutant.problem())]


def _parsed(code: str) -> list[Any]:
    """Return statements, or the one expression, which is then found also inside of a statement."""
    nodes = ast.parse(code.strip()).body
    return [nodes[0].value] if len(nodes) == 1 and isinstance(nodes[0], ast.Expr) else nodes


def _matches(
    path: Path, pattern: list[Any], function: str
) -> Iterator[tuple[_Place, int, dict[str, ast.expr]]]:
    """Yield the places, the number of nodes there, and what the capital letters stand for."""
    first = pattern[0]
    for place in _places(path).get(type(first), ()):
        places, wanted, node = [place], pattern, place.nodes[place.at]
        if isinstance(first, ast.BoolOp) and len(node.values) > len(
            first.values
        ):  # a part of "a and b and c"
            wanted, starts = first.values, range(len(node.values) if type(node.op) is type(first.op) else 0)
            places = [_Place(place.within, node, "values", node.values, start) for start in starts]
        for each in places:
            bound: dict[str, ast.expr] = {}
            part = each.nodes[each.at : each.at + len(wanted)]
            if _is_within(function, each.within) and _is_like(wanted, part, bound):
                yield each, len(wanted), bound


def _is_like(pattern: Any, node: Any, bound: dict[str, ast.expr]) -> bool:
    if isinstance(pattern, ast.Name) and _is_any(pattern.id):
        earlier = bound.setdefault(pattern.id, node)
        return isinstance(node, ast.expr) and (earlier is node or ast.unparse(earlier) == ast.unparse(node))
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(map(_is_like, pattern, node, [bound] * len(node)))
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _UNCOMPARED]
        return all(_is_like(getattr(pattern, f, None), getattr(node, f, None), bound) for f in fields)
    return bool(pattern.lstrip("_") == node.lstrip("_") if isinstance(pattern, str) else pattern == node)


def _filled(node: Any, bound: dict[str, ast.expr]) -> Any:
    """Return the node with what its capital letters stand for."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return bound[name.id] if _is_any(name.id) else name

    return Fill().visit(node)


def _is_any(name: str) -> bool:
    return len(name) == 1 and name.isupper()


@cache
def _is_within(function: str, within: str) -> bool:
    parts = within.split(".")
    return not function or any(_is_named(function, ".".join(parts[:end])) for end in range(1, len(parts) + 1))


def _is_named(asked: str, name: str) -> bool:
    """Tell whether ``asked`` names it: the same last part, and each other part somewhere before, in order."""
    *before, last = (part.lstrip("_") for part in asked.split("."))
    *outer, own = (part.lstrip("_") for part in name.split("."))
    rest = iter(outer)
    return own == last and all(part in rest for part in before)


@cache
def _places(path: Path) -> dict[type, list[_Place]]:
    """Return the places of a module by the type of their node."""
    found: dict[type, list[_Place]] = {}

    def walk(parent: ast.AST, within: str) -> None:
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for at, node in enumerate(nodes):
                found.setdefault(type(node), []).append(_Place(within, parent, field, nodes, at))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    walk(node, f"{within}.{node.name}")
                elif isinstance(node, ast.AST):
                    walk(node, within)

    walk(_module(path), _dotted(path))
    return found


@cache
def _modules() -> list[Path]:
    """Return the modules but for the fakes, which repeat what the adapters do."""
    fakes = ROOT / "sea_mq_worker" / "testing"
    return [path for path in (ROOT / "sea_mq_worker").rglob("*.py") if not path.is_relative_to(fakes)]


@cache
def _module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _words(path: Path) -> frozenset[str]:
    words = re.findall(r"\w+", path.read_text())
    return frozenset([*words, *(word.lstrip("_") for word in words)])


@cache
def _sql() -> list[tuple[str, Path, str]]:
    """Return each statement and fragment, and each file that has none of them, as name, file and text."""
    parts = []
    for path in [*(ROOT / "sql").rglob("*.sql"), *(ROOT / "sea_mq_worker").rglob("*.sql")]:
        text, name = path.read_text(), _dotted(path)
        named = [(match[1], part) for part in _STATEMENTS.split(text) if (match := _STATEMENT.match(part))]
        parts += [(f"{name}.{own}", path, part) for own, part in named] or [(name, path, text)]
    return parts


def _parameters(statement: str) -> set[str]:
    return set(re.findall(r"\$\d+", re.sub(r"--.*", "", statement)))


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def _tests() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in set(_TEST.findall(path.read_text())):
            found.setdefault(name, []).append(path)
    return found
