"""The operator's tasks of docs/operations.md, done with the commands that are written there."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.support.operators import Answer, World

_DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
_TASK = re.compile(r"^### (\d+)\. (.+?)$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def tasks() -> Mapping[str, list[str]]:
    """Return the commands of each task by its title, in the document's order."""
    found = _TASK.findall(_DOCUMENT.read_text())
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    return {title: "".join(_COMMANDS.findall(text)).splitlines() for _, title, text in found}


async def done(world: World, title: str, **named: object) -> list[Answer]:
    """Do a task as it is written, with ``named`` words in place of the commands' own; return the answers."""
    answers = []
    for line in tasks()[title]:
        program, *words = shlex.split(line)
        assert program == "sea-mq-worker"
        answers.append(await world.run(*(str(named.get(word, word)) for word in words)))
    return answers
