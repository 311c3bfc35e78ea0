"""What a TOML file tells of a relay: how it is started, and what its table looks like."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kit.guarantees import Guarantee


class DescriptionError(Exception):
    """The file cannot be used; the text names it and what is wrong."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Process(_Part):
    """Commands are lists of arguments, run in the file's folder, with placeholders in braces.

    Attributes:
        install: run once, before anything else; ``{work}`` is a folder that stays from run to run.
        prepare: run once the servers are up, to create tables for instance.
        command: the relay; ``{instance}`` is 1, or 2 for the second of two.
        environment: over the caller's own.
        several: whether two may run at once.
        lease_seconds: how long another instance has to wait for what a dead one had in hand.
        grace_seconds: how long it may take to stop after SIGTERM.
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
            ``:body`` (JSON), all as text, each as often as wanted.
        unfinished: lists the ids of the events that the relay still has to send. Without it, what is missing
            in the stream counts as stuck.
        refused: lists the ids of those that it has given up.
    """

    create: str = ""
    insert: str = Field(min_length=1)
    unfinished: str = ""
    refused: str = ""


class Message(_Part):
    """Where the event is in a message: JSON pointer to what was inserted as ``:body``; empty: all of it."""

    body: str = ""


class Description(_Part):
    """A relay to put to the test.

    Attributes:
        about: version and settings, for the reader of the results.
        not_promised: guarantees that it does not claim to keep: measured and told, but no failure.
        stream: entries of the stream's JetStream configuration, over the kit's.
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
        """Read a file.

        Raises:
            DescriptionError: it is missing, no TOML, or lacks something.
        """
        try:
            given = tomllib.loads(file.read_text())
            return cls.model_validate({**given, "folder": file.resolve().parent})
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise DescriptionError(f"{file}: {error}") from error


def filled(command: tuple[str, ...], places: Mapping[str, str]) -> list[str]:
    """Put values into the placeholders.

    Raises:
        DescriptionError: a placeholder is not known.
    """
    try:
        return [part.format_map(places) for part in command]
    except (KeyError, ValueError) as error:
        known = ", ".join(f"{{{name}}}" for name in sorted(places))
        raise DescriptionError(
            f"{' '.join(command)}: {error} is no placeholder; there are {known}"
        ) from error
