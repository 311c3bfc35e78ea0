"""Stream and consumer definitions as files: the JSON that the nats CLI takes, read by the worker too.

A folder holds ``STREAM.json`` files and ``consumers/STREAM.durable.json`` files; durations are
nanoseconds, as on the wire.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.subjects import stream_prefix
from sea_mq_worker.resources import files_in

SHIPPED_CONTEXT = "sea"
"""The context that the files which come with the worker are written for."""
MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
"""Begin of the subject that reports an exhausted message; stream and consumer follow."""
_NUMBERS = ("ack_wait", "duplicate_window", "max_age", "max_bytes")
"""Fields that the worker computes with; the server judges all fields when they are applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDefinition:
    """A stream's wanted configuration (SDS-047, JetStreamStream).

    Attributes:
        by_setting: what settings changed against the file, such as ``num_replicas 3 -> 1``.
    """

    name: str
    config: Mapping[str, Any]
    by_setting: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"stream {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDefinition:
    """A durable consumer's wanted configuration (SDS-047, DurableConsumer)."""

    stream: str
    name: str
    config: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"consumer {self.name} of stream {self.stream}"


Definition: TypeAlias = StreamDefinition | ConsumerDefinition


def definitions(
    folder: Path,
    *,
    context: str = SHIPPED_CONTEXT,
    replicas: int | None = None,
    max_bytes: int | None = None,
) -> list[Definition]:
    """Read a folder: streams first, then consumers.

    Args:
        folder: where the files are.
        context: takes the place of ``sea`` in names and subjects, unless files have its name already.
        replicas: of every stream, instead of what its file says; None leaves it.
        max_bytes: an upper bound for every stream's ``max_bytes``; None leaves it.

    Raises:
        ContractError: a file is missing or is no definition.
    """
    if (folder / f"{stream_prefix(context)}_DLQ.json").is_file():
        context = SHIPPED_CONTEXT  # the files have this context's names already
    streams = [_stream(_read(file, context), replicas, max_bytes) for file in _files(folder)]
    if not streams:
        raise ContractError(f"{folder} holds no stream definition (*.json)")
    return [*streams, *(_consumer(file, context) for file in _files(folder / "consumers"))]


def write_definitions(wanted: Sequence[Definition], folder: Path) -> list[Path]:
    """Write definitions as files into a folder that has none yet, and return the files.

    Raises:
        ContractError: the folder has definitions, or cannot be written.
    """
    if _files(folder):
        raise ContractError(f"{folder} has definitions already; name another folder")
    files = []
    try:
        (folder / "consumers").mkdir(parents=True, exist_ok=True)
        for one in wanted:
            name = one.name if isinstance(one, StreamDefinition) else f"consumers/{one.stream}.{one.name}"
            files.append(folder / f"{name}.json")
            files[-1].write_text(json.dumps(one.config, indent=2) + "\n")
    except OSError as error:
        raise ContractError(f"{folder}: cannot be written ({error.strerror})") from error
    return files


def _files(folder: Path) -> list[Path]:
    try:
        return files_in(folder, ".json")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ContractError(f"{folder}: cannot be listed ({error.strerror})") from error


def _stream(config: dict[str, Any], replicas: int | None, max_bytes: int | None) -> StreamDefinition:
    changed = dict(config)
    if replicas is not None:
        changed["num_replicas"] = replicas
    if max_bytes is not None and not 0 <= config.get("max_bytes", -1) <= max_bytes:
        changed["max_bytes"] = max_bytes
    by_setting = tuple(
        f"{field} {config.get(field)} -> {value}"
        for field, value in changed.items()
        if value != config.get(field)
    )
    return StreamDefinition(name=config["name"], config=changed, by_setting=by_setting)


def _consumer(file: Path, context: str) -> ConsumerDefinition:
    stream, dot, _ = file.stem.partition(".")
    if not dot:
        raise ContractError(f"{file.name}: a consumer's file is called STREAM.durable.json")
    config = _read(file, context)
    return ConsumerDefinition(stream=_renamed(stream, context), name=config["name"], config=config)


def _read(file: Path, context: str) -> dict[str, Any]:
    try:
        config = json.loads(_renamed(file.read_text(), context))
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        raise ContractError(f"{file}: is no stream or consumer definition, it has no name")
    if wrong := [field for field in _NUMBERS if not isinstance(config.get(field, 0), int)]:
        raise ContractError(f"{file}: {wrong[0]} is not a whole number")
    return config


def _renamed(text: str, context: str) -> str:
    """Put ``context`` in the place of the shipped one, where that is a whole word or begins a name."""
    text = re.sub(rf"(?<![A-Za-z0-9_]){SHIPPED_CONTEXT}(?=__|[^A-Za-z0-9_])", context, text)
    return re.sub(rf"(?<![A-Za-z0-9_]){SHIPPED_CONTEXT.upper()}(?=_)", stream_prefix(context), text)
