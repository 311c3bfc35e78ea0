"""A relay's TOML description: the commands that run it, and SQL for its table."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kit.guarantees import Guarantee


class DescriptionError(Exception):
    """The file cannot be used; the text names the file and the error."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Process(_Part):
    """Commands are lists of arguments, run in the file's folder, with placeholders in braces.

    Attributes:
        install: run once before the first run; the folder ``{work}`` is kept from run to run.
        prepare: run after the servers' start, for example to create tables.
        command: runs the relay; ``{instance}`` is 1, or 2 for the second of two.
        environment: variables added to the caller's.
        several: whether two instances may run at once.
        lease_seconds: time after which another instance takes over the claims of a dead one.
        grace_seconds: limit of the time from SIGTERM to the relay's end.
    """

    install: tuple[tuple[str, ...], ...] = ()
    prepare: tuple[tuple[str, ...], ...] = ()
    command: tuple[str, ...] = Field(min_length=1)
    environment: Mapping[str, str] = {}
    several: bool = True
    lease_seconds: float = 5.0
    grace_seconds: float = 15.0


class Table(_Part):
    """SQL for the relay's table.

    Attributes:
        create: run before ``prepare``; may be several statements.
        insert: writes one event from ``:id`` (a UUID), ``:type``, ``:key`` (or null), ``:subject`` and
            ``:body`` (JSON), all as text; each may occur any number of times.
        unfinished: selects the IDs of events that are still to be sent. Without it, every event that is
            missing in the stream counts as stuck.
        refused: selects the IDs of events that the relay has given up.
    """

    create: str = ""
    insert: str = Field(min_length=1)
    unfinished: str = ""
    refused: str = ""


class Message(_Part):
    """Location of the event in a message: JSON pointer to the inserted ``:body``; empty: the whole body."""

    body: str = ""


class Description(_Part):
    """A relay to test.

    Attributes:
        about: version and settings, shown with the results.
        not_promised: guarantees that the relay does not claim; measured, but breaking one is no failure.
        stream: JetStream settings of the stream that replace the kit's.
    """

    name: str
    about: str = ""
    folder: Path
    not_promised: tuple[Guarantee, ...] = ()
    relay: Process
    table: Table
    message: Message = Message()
    stream: Mapping[str, Any] = {}

    @classmethod
    def load(cls, file: Path) -> Self:
        """Load a file.

        Raises:
            DescriptionError: the file is missing, is not TOML, or lacks an entry.
        """
        try:
            given = tomllib.loads(file.read_text())
            return cls.model_validate({**given, "folder": file.resolve().parent})
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise DescriptionError(f"{file}: {error}") from error


def filled(command: tuple[str, ...], places: Mapping[str, str]) -> list[str]:
    """Replace the placeholders by their values.

    Raises:
        DescriptionError: a placeholder is unknown.
    """
    try:
        return [part.format_map(places) for part in command]
    except (KeyError, ValueError) as error:
        known = ", ".join(f"{{{name}}}" for name in sorted(places))
        raise DescriptionError(
            f"{' '.join(command)}: unknown placeholder {error}; expected one of {known}"
        ) from error
