"""The commands of the documents: those in their blocks of code, and those in the middle of a sentence."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
SHELLS = frozenset({"sh", "console"})
"""Languages of blocks with commands; `console` has a prompt before each, and their output."""

_PROMPT = "$ "
_COMMENT = re.compile(r"\s{2,}#\s.*$")


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is shown, without prompt and comment."""

    document: str
    heading: str
    text: str


@cache
def files(pattern: str = "*") -> tuple[str, ...]:
    """List the files of the repository as it is now, by their paths in it."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return tuple(name for name in names if (ROOT / name).is_file())


def fresh_checkout(folder: Path) -> Path:
    """Copy what is in the repository, as it is now."""
    for file in files():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    return folder


def shell(line: str, folder: Path = ROOT, **environment: str) -> str:
    """Run a line of a shell with this Python's programs; return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        line, shell=True, cwd=folder, env=os.environ | {"PATH": path} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def documents() -> tuple[str, ...]:
    """List all Markdown files."""
    return files("*.md")


@cache
def parsed(document: str) -> tuple[Token, ...]:
    """Read a document."""
    return tuple(MarkdownIt("commonmark").enable("table").parse((ROOT / document).read_text()))


def blocks(document: str) -> Iterator[tuple[str, str, str]]:
    """Yield heading, language and text of each block of code."""
    heading, tokens = "", parsed(document)
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            heading = token.content
        if token.type in {"fence", "code_block"}:
            yield heading, token.info.strip(), token.content


def commands(document: str, heading: str = "") -> list[Command]:
    """Return the commands of a document's blocks, or those below one heading, in their order."""
    return [
        Command(document, found, line)
        for found, language, text in blocks(document)
        if language in SHELLS and heading in {"", found}
        for line in _lines(text, prompted=language == "console")
    ]


def output(document: str) -> str:
    """Return the output that the document shows for its one command."""
    [(_, _, text)] = [block for block in blocks(document) if block[1] == "console"]
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_PROMPT))


def inline(document: str) -> list[str]:
    """Return the pieces of code between a document's words."""
    found = [token for token in parsed(document) if token.type == "inline"]
    return [c.content for token in found for c in token.children or () if c.type == "code_inline"]


def _lines(text: str, *, prompted: bool) -> Iterator[str]:
    for line in text.replace("\\\n", "").splitlines():
        if prompted and not line.startswith(_PROMPT):
            continue
        command = _COMMENT.sub("", line.removeprefix(_PROMPT) if prompted else line).strip()
        if command:
            yield command
