"""The producers' record of their transactions, synced to a file before and after each step."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path


class Fate(StrEnum):
    """The outcome of a transaction, as known to its producer."""

    INTENT = "intent"
    OK = "ok"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An event that the producer writes; ``dead`` is a word of its expected error, empty for a good event."""

    id: str
    payload: str
    key: str | None = None
    dead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Events to be committed together."""

    name: str
    events: tuple[Planned, ...]
    fate: Fate = Fate.INTENT


class Ledger:
    """A file of lines; an intent without a recorded outcome counts as unknown."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    async def intend(self, name: str, events: Sequence[Planned]) -> None:
        """Record the events before their insertion."""
        await self._write(json.dumps(asdict(Transaction(name=name, events=tuple(events)))))

    async def settle(self, name: str, fate: Fate) -> None:
        """Record the outcome."""
        await self._write(json.dumps({"name": name, "fate": fate}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def _write(self, line: str) -> None:
        def write() -> None:
            self._file.write(line.encode() + b"\n")
            os.fdatasync(self._file.fileno())

        await asyncio.to_thread(write)


def read(path: Path) -> dict[str, Transaction]:
    """Read a ledger from its file, which the checks trust more than the process that wrote it."""
    found: dict[str, Transaction] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "events" in entry:
            events = tuple(Planned(**event) for event in entry["events"])
            found[entry["name"]] = Transaction(name=entry["name"], events=events)
        else:
            found[entry["name"]] = replace(found[entry["name"]], fate=Fate(entry["fate"]))
    return {name: replace(t, fate=Fate.UNKNOWN) if t.fate is Fate.INTENT else t for name, t in found.items()}
