"""The project's own programs read their words, as they would from a shell, and do nothing."""

import argparse
import re
import runpy
import shlex
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException
from typer.main import get_command

from sea_mq_worker.cli import app
from tests.support.documents import ROOT

WORKER = "sea_mq_worker"
_SCRIPT = "sea-mq-worker"
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_PYTHON = re.compile(r"(\S*/)?python3?")
_COMMAND = re.compile(r"[a-z]+( [\w./=\"-]+)*")
_AND_SO_ON = "…"
_SOME_ID, _SOME_NUMBER = str(uuid.UUID(int=1)), "1"
_PLACEHOLDERS = {
    **dict.fromkeys(("ID", "EVENT", "MESSAGE", "CORRELATION"), _SOME_ID),
    **dict.fromkeys(("SEQ", "ACTION"), _SOME_NUMBER),
}


class _ReadsWordsError(Exception):
    """A program has come to its words."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def named_command(code: str) -> list[str]:
    """Return a piece of code as the worker's command that it names without the program, or nothing."""
    words = shlex.split(code) if _COMMAND.fullmatch(code) else []
    first = _worker().commands.get(words[0]) if words else None
    is_mere_group = len(words) == 1 and hasattr(first, "commands")
    return [] if first is None or is_mere_group else words


def own_programs(command: str) -> Iterator[tuple[str, list[str]]]:
    """Find the project's programs in a line of a shell: the module, and the words that it is given."""
    for simple in re.split(r" (?:&&|\|) ", command):
        if _SCRIPT in simple or "python" in simple:
            yield from _own(shlex.split(simple))


def _own(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    if "--" in words:
        yield from _own(words[words.index("--") + 1 :])
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    match words:
        case [program, *rest] if program.rpartition("/")[2] == _SCRIPT:
            yield WORKER, rest
        case [program, "-m", module, *rest] if _PYTHON.fullmatch(program) and _is_own(module):
            yield module, rest


def _is_own(module: str) -> bool:
    return (ROOT / module.partition(".")[0]).is_dir()


def refused(module: str, words: Sequence[str]) -> str:
    """Return the reason why a program refuses its arguments, or an empty text.

    A word that is missing is no fault: a document may name a command without.
    """
    if module == WORKER:
        return _refused_by_worker(list(words))
    if not _entry(module).is_file():
        return f"there is no program {module}"
    if not words:
        return ""
    if strange := {word for word in words if word.startswith("--")} - options_of(module):
        return f"there is no option {strange}"
    try:
        with patch.object(argparse.ArgumentParser, "error", _raise):
            parser_of(module).parse_args(words)
    except ValueError as error:
        return str(error)
    return ""


def _entry(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def _raise(_parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise ValueError(message)


def worker_command(words: Sequence[str]) -> None:
    """Read the words of one command of the worker, all that it requires among them.

    Raises:
        TyperException: the command refuses them.
    """
    command: Any = _worker()
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    command.make_context(command.name, rest)


def _refused_by_worker(words: list[str]) -> str:
    command: Any = _worker()
    rest = [_PLACEHOLDERS.get(word, word) for word in words if word != _AND_SO_ON]
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return f"there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands"):
        return "".join(f"there is no option {word}" for word in rest if word not in OPTIONS)
    try:
        command.make_context(command.name, rest)
    except Exit:
        return ""  # it was asked for help
    except TyperException as error:
        return "" if type(error).__name__ == "MissingParameter" else str(error)
    return ""


@cache
def _worker() -> Any:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


@cache
def parser_of(module: str) -> argparse.ArgumentParser:
    """Start a program, and take the parser that it is about to read its words with."""

    def caught(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _ReadsWordsError(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", caught), patch.object(sys, "argv", [module]):
        try:
            runpy.run_path(str(_entry(module)), run_name="__main__")
        except _ReadsWordsError as found:
            return found.parser
    raise AssertionError(f"{module} reads no words")


def _worker_options(command: Any) -> Iterator[str]:
    for one in command.params:
        yield from one.opts
    for below in getattr(command, "commands", {}).values():
        yield from _worker_options(below)


OPTIONS = frozenset({*_worker_options(_worker()), "--help"})
"""Options of any command of the worker."""


def options_of(module: str) -> frozenset[str]:
    """Return the options of another program of the project, and of its commands."""
    reads_words = "ArgumentParser(" in _entry(module).read_text()
    return frozenset(_argparse_options(parser_of(module)) if reads_words else ())


def _argparse_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _argparse_options(below)
