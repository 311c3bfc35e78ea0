"""The operator's tasks of docs/how-to/operations.md, done with the commands that are written there."""

from collections.abc import Mapping

from tests.support.documents import commands
from tests.support.operators import Answer, World
from tests.support.programs import own_programs

DOCUMENT = "docs/how-to/operations.md"


def tasks() -> Mapping[str, list[str]]:
    """Return the commands of each task by its title, in the document's order."""
    found: dict[str, list[str]] = {}
    for command in commands(DOCUMENT):
        found.setdefault(command.heading, []).append(command.text)
    numbers, titles = zip(*(heading.split(". ", 1) for heading in found), strict=True)
    assert [int(number) for number in numbers] == list(range(1, len(found) + 1))
    return dict(zip(titles, found.values(), strict=True))


async def done(world: World, title: str, **named: object) -> list[Answer]:
    """Do a task as it is written, with ``named`` words in place of the commands' own; return the answers."""
    answers = []
    for line in tasks()[title]:
        [(_, words)] = own_programs(line)
        answers.append(await world.run(*(str(named.get(word, word)) for word in words)))
    return answers
