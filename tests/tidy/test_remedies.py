"""Each command that the worker prints as a remedy can be run as printed: no option lacks, none is wrong."""

import ast
import importlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.exceptions import Exit, TyperException

from tests.support.documents import ROOT
from tests.support.programs import own_programs, worker_command

_PACKAGE = ROOT / "sea_mq_worker"
_WITHOUT_SPARK = re.compile(r"sea_mq_worker\.pipeline\b")
_PRINTED = re.compile(r"`(python -m sea_mq_worker[^`]*)`|(python -m sea_mq_worker [^`\n;,]*)")
_BARE = re.compile(r"python -m sea_mq_worker\W*")
_VALUES = (str(uuid.UUID(int=1)), "1", "REJECTED")
"""What may stand where a text has a value that only the run knows."""


def remedies() -> list[tuple[str, str]]:
    """Return the commands within the program's texts, by file; a value of the run is {}."""
    found = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for text in _texts(tree, _module(path)):
            found += [(path.relative_to(ROOT).as_posix(), one) for one in _commands(text)]
    for path in sorted(_PACKAGE.rglob("*.js")):
        found += [
            (path.relative_to(ROOT).as_posix(), one)
            for one in re.findall(r'"(python -m [^"]+)"', path.read_text())
        ]
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]:
        found += [
            ("deploy/prometheus/alerts.yaml", rule["annotations"]["command"])
            for rule in group["rules"]
            if "python -m sea_mq_worker" in rule.get("annotations", {}).get("command", "")
        ]
    return list(dict.fromkeys(found))


def _module(path: Path) -> ModuleType | None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return None if _WITHOUT_SPARK.match(name) else importlib.import_module(name)


def _texts(tree: ast.Module, module: ModuleType | None) -> Iterator[str]:
    """Return the texts of a module, but for its docstrings."""
    within = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            within.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            yield "".join(_part(part, module) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
            yield node.value


def _part(part: ast.expr, module: ModuleType | None) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else None
    known = getattr(module, value.id, None) if isinstance(value, ast.Name) else None
    return known if isinstance(known, str) else "{}"


def _commands(text: str) -> Iterator[str]:
    for quoted, plain in _PRINTED.findall(text):
        if not _BARE.fullmatch(command := (quoted or plain).strip(" .:)")):
            yield command


REMEDIES = remedies()


@pytest.mark.parametrize(("file", "printed"), REMEDIES)
def test_a_printed_command_has_all_that_it_requires(file: str, printed: str) -> None:
    problems = [_problem(printed.replace("{}", value)) for value in _VALUES]
    assert "" in problems, f"{file}: {printed}: {problems[0]}"


def _problem(command: str) -> str:
    [(_, words)] = own_programs(command)
    try:
        worker_command(words)
    except Exit:
        return ""
    except TyperException as error:
        return str(error) or type(error).__name__
    return ""


def test_the_commands_that_findings_print_are_among_them() -> None:
    assert len(REMEDIES) > 40
