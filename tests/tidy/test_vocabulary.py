"""Texts are plain English, and names the field's terms."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain

import pytest

from sea_mq_worker.doctor import KINDS
from sea_mq_worker.settings import Settings
from sea_mq_worker.telemetry.events import LOG_EVENTS
from sea_mq_worker.telemetry.metrics import METRICS
from sea_mq_worker.telemetry.tracing import SPANS
from tests.support.documents import ROOT
from tools.docs.cli import commands

FOLDERS = ("sea_mq_worker", "benchmarks", "tools")
QUIRKS = re.compile(
    r"(?:^|[.!?] )(?:What|Whoever)\b(?![^.!]*\?)"  # a sentence that begins with a free relative clause
    r"|\bis told\b|\btells what\b|\bso many\b|\bat the least\b|\b[Mm]end(?:s|ed|ing)?\b"
)
JARGON = frozenset(
    {"gate", "gates", "burial", "buried", "bury", "leftovers", "stranded", "doubtful", "patience", "keeping"}
    | {"lookout", "desk", "errand", "told", "twin"}
)
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
SENTENCE_WORDS_MIN = 3


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    """Return each module by its path."""
    paths = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the first line of each docstring, and every other string constant with several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            first = node.value.strip().split("\n\n")[0]
            if len(first.split()) >= SENTENCE_WORDS_MIN:
                yield first


def names(tree: ast.Module) -> Iterator[str]:
    """Yield every name that the module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name):
                yield name
            case _:
                pass


def has_jargon(name: str) -> bool:
    return not JARGON.isdisjoint(word.lower() for word in WORDS.findall(name))


def has_quirk(text: str) -> bool:
    return QUIRKS.search(text) is not None


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("What is wrong with the streams.", True),
        ("It ended. Whoever reads it is slow.", True),
        ("What happens after a crash? It restarts.", False),
        ("The worker fixes it; the log says what happened.", False),
        ("Look at so many rows.", True),
        ("It is told in the log.", True),
        ("An operator mended it.", True),
        ("An amended recommendation.", False),
    ],
)
def test_a_quirk_is_recognized(text: str, is_wrong: bool) -> None:
    assert has_quirk(text) == is_wrong


@pytest.mark.parametrize(
    ("name", "is_wrong"), [("_told_of", True), ("WorkerDesk", True), ("gateway", False), ("tell", False)]
)
def test_jargon_is_recognized_as_a_word_of_a_name(name: str, is_wrong: bool) -> None:
    assert has_jargon(name) == is_wrong


def test_texts_for_users_have_no_quirk() -> None:
    shown = chain(
        (field.description or "" for field in Settings.model_fields.values()),
        (text for metric in METRICS for text in (metric.meaning, metric.conclusion)),
        (event.meaning for event in LOG_EVENTS),
        (span.meaning for span in SPANS),
        (text for kind in KINDS for text in (kind.condition, kind.why, kind.fix)),
    )
    assert [text for text in shown if has_quirk(text)] == []


def test_help_has_no_quirk() -> None:
    assert [text for command in commands().values() for text in helps(command) if has_quirk(text)] == []


def helps(command: object) -> Iterator[str]:
    """Yield the help of a command and of each of its options."""
    yield getattr(command, "help", None) or ""
    for option in getattr(command, "params", ()):
        yield getattr(option, "help", None) or ""


def test_texts_have_no_quirk() -> None:
    assert {path.partition("/")[0] for path, _ in trees()} == set(FOLDERS)
    assert [(path, text) for path, tree in trees() for text in texts(tree) if has_quirk(text)] == []


def test_names_have_no_jargon() -> None:
    assert [(path, name) for path, tree in trees() for name in names(tree) if has_jargon(name)] == []
