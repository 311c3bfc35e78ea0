"""Stream and consumer definitions as files: the JSON that the nats CLI takes, read by the worker too.

A folder holds ``STREAM.json`` files and ``consumers/STREAM.durable.json`` files; durations are
nanoseconds, as on the wire.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.errors import ApiRefusedError, PublishDeniedError
from sea_mq_worker.nats.info import (
    PULL_SECONDS_MIN,
    ConsumerInfo,
    StreamInfo,
    find_consumer,
    find_stream,
    missing_stream,
    stream_info,
    streams_taking,
)
from sea_mq_worker.nats.subjects import events_stream, stream_prefix
from sea_mq_worker.resources import files_in, resource_folder

# --- Differences of streams and consumers from their definitions, and the changes that remove them.

EXISTENCE = "existence"
"""Field name of a difference whose stream or consumer is missing altogether."""
AWAITED = "awaited"
"""Field name of a difference whose consumer is missing and waits for another context, named as wanted."""
_DURATIONS = frozenset({"ack_wait", "duplicate_window", "max_age"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of a stream or consumer that differs from its definition.

    EXISTENCE, AWAITED: all of it is missing.
    """

    name: str
    field: str
    wanted: Any
    found: Any

    @property
    def text(self) -> str:
        """The difference without the name, for people."""
        if self.field == EXISTENCE:
            return "it is missing"
        if self.field == AWAITED:
            return f"it is missing, and waits for {self.wanted}"
        wanted, found = self.wanted, self.found
        if self.field in _DURATIONS:
            wanted, found = (f"{nanoseconds / 1e9:g} s" for nanoseconds in (wanted, found))
        return f"{self.field} should be {wanted} and is {found}"

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a stream or consumer: ``created`` or ``updated``, and the differences that it removed.

    In a dry run, the change was not made.
    """

    name: str
    action: str
    differences: tuple[Difference, ...]
    by_setting: tuple[str, ...] = ()


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


# --- Definitions without files of one's own: they follow from the names of the consumers.
#
# The bundled files define the stream and the consumer of one other context, ``vibespro``. They are the
# pattern for the streams and consumers of all other contexts.

_PATTERN = "vibespro"
_FROM = "__from_"


def derived_definitions(
    consumers: Sequence[tuple[str, str]],
    *,
    context: str,
    replicas: int | None = None,
    max_bytes: int | None = None,
) -> list[Definition]:
    """Return the definitions of a context: streams first, then consumers.

    The stream ``PAYMENTS_EVENTS`` belongs to the context ``payments``. A stream with another form of name,
    and its consumer, need files, because their subjects are unknown.

    Args:
        consumers: stream and durable of each consumer; empty: the bundled one.
        context: own context.
        replicas: as for ``definitions``.
        max_bytes: as for ``definitions``.

    Raises:
        ContractError: a bundled file cannot be read.
    """
    folder = resource_folder("streams")
    bundled = definitions(folder, context=context, replicas=replicas, max_bytes=max_bytes)
    if not consumers:
        return bundled
    by_role = zip((shipped.name for shipped in definitions(folder)), bundled, strict=True)
    return [each for role, one in by_role for each in _expand(role, one, consumers, context)]


def _expand(
    role: str, bundled: Definition, consumers: Sequence[tuple[str, str]], context: str
) -> Iterator[Definition]:
    """Yield the definitions that take the place of a bundled one; its name in the file is its role."""
    contexts = {stream: _context_of(stream, durable) for stream, durable in consumers}
    advisories = [f"{MAX_DELIVERIES}.{stream}.{durable}" for stream, durable in consumers]
    match role:
        case "VIBESPRO_EVENTS":
            for stream, upstream in contexts.items():
                if upstream not in {"", context}:
                    yield replace(bundled, name=stream, config=_stream_of(bundled.config, stream, upstream))
        case "sea__from_vibespro":
            for stream, durable in consumers:
                if upstream := contexts[stream]:
                    config = _consumer_of(bundled.config, durable, upstream)
                    config["description"] = f"{context} consuming from {stream}"
                    yield ConsumerDefinition(stream=stream, name=durable, config=config)
        case "SEA_ADVISORIES":
            yield replace(bundled, config={**bundled.config, "subjects": advisories})
        case "sea__max_deliveries":
            only = advisories[0] if len(advisories) == 1 else ""
            yield replace(bundled, config={**bundled.config, "filter_subject": only})
        case _:
            yield bundled


def _context_of(stream: str, durable: str) -> str:
    """Return the context that publishes to a stream; empty: unknown. Its hyphens are underscores in names."""
    if stream == events_stream(named := durable.partition(_FROM)[2]):
        return named
    guessed = stream.removesuffix("_EVENTS").lower()
    return guessed if events_stream(guessed) == stream else ""


def _stream_of(config: Mapping[str, Any], stream: str, upstream: str) -> dict[str, Any]:
    described = config["description"].replace(_PATTERN, upstream)
    return {**config, "name": stream, "description": described, "subjects": [f"{upstream}.event.>"]}


def _consumer_of(config: Mapping[str, Any], durable: str, upstream: str) -> dict[str, Any]:
    return {**config, "durable_name": durable, "name": durable, "filter_subject": f"{upstream}.event.>"}


# --- Compares the server's streams and consumers with their definitions, and creates or updates them.
#
# Configurations stay raw JSON: nats-py's dataclasses drop unknown fields, so an update would lose settings.

_USABLE = {"backoff": [], "ack_policy": "explicit", "deliver_subject": "", "headers_only": False}
"""A consumer's fields that the worker depends on, for definitions that do not name them."""
_NO_PRIORITY = {"priority_policy": "none", "priority_groups": []}
_NANOSECONDS = 1e9
_SINCE: Mapping[str, tuple[int, int]] = {"allow_atomic": (2, 12), "allow_batched": (2, 14)}


async def check(
    connection: NatsConnection,
    definitions: Sequence[Definition],
    *,
    among: Sequence[Definition] = (),
    advisories: bool = True,
) -> list[Difference]:
    """Compare the fields that each definition names; other fields may have any value.

    ``among``: all definitions of the context, if these are only some;
    ``advisories``: also check that a stream keeps the server's MAX_DELIVERIES advisories.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: asking is not permitted, or a stream may be in another JetStream domain.
    """
    found: list[Difference] = []
    for definition in definitions:
        config = await _existing_config(connection, definition)
        if not config and await _waits_for_stream(connection, definition, among or definitions):
            create = f"streams apply --stream {_sync_stream(definition)}"
            stream = f"its stream, which another context creates (`{create}`)"
            found.append(Difference(name=definition.label, field=AWAITED, wanted=stream, found="missing"))
            continue
        found += _differences(definition, _wanted(connection, definition, config), config)
        if isinstance(definition, ConsumerDefinition) and config:
            found += await _filters_outside_stream(connection, definition, config)
            found += await _advisories_not_kept(connection, definition, config) if advisories else []
    return found


async def apply(
    connection: NatsConnection,
    definitions: Sequence[Definition],
    *,
    dry_run: bool = False,
    on_change: Callable[[Change], None] = lambda _: None,
) -> list[Change]:
    """Create missing and update differing streams and consumers; delete nothing. Idempotent.

    Leave out a missing consumer of another context's stream while that stream is missing, or if only the
    other context may create the consumer.

    ``on_change`` is called with each change once it is made.

    Raises:
        BrokerUnavailableError: the server did not answer; earlier changes stay.
        ContractError: the server refuses; the text names the fix. Earlier changes stay.
    """
    changes = []
    for definition in definitions:
        config = await _existing_config(connection, definition)
        if not config and await _waits_for_stream(connection, definition, definitions):
            continue
        wanted = _wanted(connection, definition, config)
        differences = tuple(_differences(definition, wanted, config))
        if not differences:
            continue
        if not dry_run:
            try:
                await _create_or_update(connection, definition, wanted, config)
            except ApiRefusedError as error:
                raise _refused(error, definition, differences) from error
            except PublishDeniedError as error:
                if not is_foreign(definition, definitions):
                    raise
                if not config:
                    continue
                raise ContractError(f"{definition.label} {elsewhere(definition.stream)}") from error
        by_setting = definition.by_setting if isinstance(definition, StreamDefinition) else ()
        changes.append(
            Change(
                name=definition.label,
                action="updated" if config else "created",
                differences=differences,
                by_setting=by_setting,
            )
        )
        on_change(changes[-1])
    return changes


def is_foreign(definition: Definition, definitions: Sequence[Definition]) -> TypeGuard[ConsumerDefinition]:
    """Whether it is a consumer of a stream that is not among the definitions."""
    streams = {one.name for one in definitions if isinstance(one, StreamDefinition)}
    return isinstance(definition, ConsumerDefinition) and definition.stream not in streams


def elsewhere(stream: str) -> str:
    """Return who creates and changes a consumer of another context's stream, where this user may not."""
    there = f"`streams apply --stream {stream}` there, with this context's consumers"
    return f"belongs to a stream of another context, whose user creates it: {there}"


def _sync_stream(definition: Definition) -> str:
    return definition.stream if isinstance(definition, ConsumerDefinition) else definition.name


async def _waits_for_stream(
    connection: NatsConnection, definition: Definition, definitions: Sequence[Definition]
) -> bool:
    if not is_foreign(definition, definitions):
        return False
    return await find_stream(connection, _sync_stream(definition)) is None


async def _existing_config(connection: NatsConnection, definition: Definition) -> dict[str, Any]:
    """Return the server's configuration; empty if the stream or consumer does not exist.

    A stream that is missing at a server of an undeclared domain may be in another one: an error says so.
    """
    found: StreamInfo | ConsumerInfo | None
    if isinstance(definition, StreamDefinition):
        found = await find_stream(connection, definition.name)
        if found is None and connection.undeclared_domain:
            raise missing_stream(connection, definition.name)
    else:
        found = await find_consumer(connection, definition.stream, definition.name)
    return _without_reserved(found.config) if found else {}


def _wanted(connection: NatsConnection, definition: Definition, found: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the fields that the connected server is too old for, and add those that stop the worker."""
    here = connection.server_version
    config = _without_reserved(definition.config)
    if isinstance(definition, ConsumerDefinition):
        config = _USABLE | config
        if found.get("priority_policy"):
            config = _NO_PRIORITY | config
        if 0 < found.get("max_expires", 0) < PULL_SECONDS_MIN * _NANOSECONDS:
            config = {"max_expires": 0} | config
    return {key: value for key, value in config.items() if here >= _SINCE.get(key, (0, 0))}


def _without_reserved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the metadata that the server adds."""
    if "metadata" not in config:
        return dict(config)
    own = {key: value for key, value in config["metadata"].items() if not key.startswith("_nats.")}
    return {**config, "metadata": own}


def _differences(
    definition: Definition, wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> list[Difference]:
    name = definition.label
    if not found:
        return [Difference(name=name, field=EXISTENCE, wanted="present", found="missing")]
    return [
        Difference(name=name, field=field, wanted=value, found=_sync_value(found, field, value))
        for field, value in wanted.items()
        if _comparable(value) != _comparable(_sync_value(found, field, value))
    ]


def _sync_value(found: Mapping[str, Any], field: str, wanted: object) -> Any:
    """Return a field of the server; the server leaves out false, empty and 0."""
    return found.get(field, type(wanted)())


def _comparable(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, list) else value


async def _filters_outside_stream(
    connection: NatsConnection, definition: ConsumerDefinition, config: Mapping[str, Any]
) -> list[Difference]:
    """Find a filter that matches nothing, which the server accepts silently."""
    stream = await stream_info(connection, definition.stream)
    name = definition.label
    found = []
    for subject in config.get("filter_subjects") or [config.get("filter_subject", ">")]:
        if subject != ">" and not (stream.copies or stream.takes(subject)):
            within = f"within {', '.join(stream.subjects)}"
            found.append(Difference(name=name, field="filter_subject", wanted=within, found=subject))
    return found


async def _advisories_not_kept(
    connection: NatsConnection, definition: ConsumerDefinition, config: Mapping[str, Any]
) -> list[Difference]:
    """Find a consumer whose advisories no stream keeps."""
    if config.get("max_deliver", -1) <= 0:
        return []
    advisory = f"{MAX_DELIVERIES}.{definition.stream}.{definition.name}"
    if await streams_taking(connection, advisory):
        return []
    wanted = f"{advisory} kept by a stream"
    return [Difference(name=definition.label, field="advisories", wanted=wanted, found="not kept")]


async def _create_or_update(
    connection: NatsConnection, definition: Definition, wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Create or update; an update keeps the server's fields that the definition does not name."""
    config = {**found, **wanted}
    if isinstance(definition, StreamDefinition):
        verb = "UPDATE" if found else "CREATE"
        await api(connection, f"STREAM.{verb}.{definition.name}", config)
        return
    action = "update" if found else "create"
    request = {"stream_name": definition.stream, "config": config, "action": action}
    subject = f"CONSUMER.CREATE.{definition.stream}.{definition.name}"
    filtered = config.get("filter_subject")
    await api(connection, f"{subject}.{filtered}" if filtered else subject, request)


_STORAGE = (
    "; the server has no room for max_bytes, which it reserves: give it more storage "
    "(jetstream max_file_store) or set SEA_MQ_STREAM_MAX_BYTES lower"
)
_CREATED_MEANWHILE = (
    "; another client created it just now with other values: run `python -m sea_mq_worker streams check`"
)
_REPLICAS = "; set SEA_MQ_STREAM_REPLICAS to at most the number of servers in the cluster"
_FIXES: Mapping[int, str] = {
    10074: _REPLICAS,
    10047: _STORAGE,
    10005: f"{_REPLICAS}{_STORAGE}",
    10012: "; a consumer's acknowledgement and delivery policy cannot be changed: once nothing uses it, "
    "delete it with `nats consumer rm` and apply again; the new one starts at the stream's beginning and the "
    "inbox skips what was processed",
    10052: "; a stream's storage and retention cannot be changed: copy the stream, delete it with "
    "`nats stream rm` and apply again",
    10058: _CREATED_MEANWHILE,
    10059: "; the stream is missing: its context makes it, or `streams apply --stream {stream}` does",
    10065: "; another stream takes these subjects already: give each context its own",
    10093: "; its filter_subject has to lie within the subjects of its stream",
    10148: _CREATED_MEANWHILE,
}


def _refused(
    error: ApiRefusedError, definition: Definition, differences: Sequence[Difference]
) -> ContractError:
    what = "; ".join(f"{d.field} {d.found} -> {d.wanted}" for d in differences)
    stream = _sync_stream(definition)
    fix = _FIXES.get(error.err_code, "").replace("{stream}", stream)
    return ContractError(f"{definition.label} ({what}): {error}{fix}")
