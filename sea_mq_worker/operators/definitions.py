"""Definitions of streams and durable consumers: what a deployment wants, what the server has, what differs.

A folder holds ``STREAM.json`` and ``consumers/STREAM.durable.json``, the JSON that the nats CLI takes;
durations are nanoseconds, as on the wire. Configurations stay raw JSON: nats-py's dataclasses drop unknown
fields, so an update would lose settings.

Functions that ask the server raise BrokerUnavailableError if it does not answer, and ContractError if it
refuses.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.errors import ApiRefusedError, PublishDeniedError
from sea_mq_worker.nats.info import (
    PULL_SECONDS_MIN,
    find_consumer,
    find_stream,
    missing_stream,
    stream_info,
    streams_taking,
)
from sea_mq_worker.nats.subjects import events_stream, stream_prefix
from sea_mq_worker.operators.streams import open_broker
from sea_mq_worker.ports import Events
from sea_mq_worker.resources import files_in, resource_folder
from sea_mq_worker.settings import Settings

EXISTENCE = "existence"
"""Field name of a difference whose stream or consumer is missing altogether."""
AWAITED = "awaited"
"""Field name of a difference whose consumer is missing and waits for another context, named as wanted."""
MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
"""Begin of the subject that reports an exhausted message; stream and consumer follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The wanted configuration of a stream or, with ``durable``, of a consumer of it.

    ``by_setting``: what settings changed against the file, such as ``num_replicas 3 -> 1``.
    """

    stream: str
    durable: str = ""
    config: dict[str, Any]
    by_setting: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return label(self.stream, self.durable)


def label(stream: str, durable: str = "") -> str:
    return f"consumer {durable} of stream {stream}" if durable else f"stream {stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field that differs from its definition; EXISTENCE, AWAITED: the stream or consumer is missing."""

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
        if self.field in {"ack_wait", "duplicate_window", "max_age"}:
            wanted, found = (f"{nanoseconds / 1e9:g} s" for nanoseconds in (wanted, found))
        return f"{self.field} should be {wanted} and is {found}"

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A stream or consumer that was ``created`` or ``updated``, or would be; what differed before."""

    name: str
    action: str
    differences: tuple[Difference, ...]
    by_setting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Changes that ``streams apply`` made or would make, and the differences that are left."""

    changes: list[Change] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


# --- Read the files.

_SHIPPED_CONTEXT = "sea"
"""The context that the bundled files are written for."""
_UPSTREAM = "__from_"
_NUMBERS = ("ack_wait", "duplicate_window", "max_age", "max_bytes")
"""Fields that the worker computes with; the server judges all fields when they are applied."""


def definitions(s: Settings) -> list[Definition]:
    """Return every definition, streams first: of SEA_MQ_STREAMS_FOLDER, or what SEA_MQ_CONSUMERS implies.

    The bundled files define the stream and the consumer of one other context, which are the pattern for those
    of all others: the stream PAYMENTS_EVENTS belongs to the context payments. A stream with another form of
    name, and its consumer, need files, because their subjects are unknown.
    """
    if s.streams_folder:
        return _in_folder(s.streams_folder, s)
    bundled = _in_folder(resource_folder("streams"), s)
    if not s.consumers:
        return bundled
    advisories, letters, events, pattern, exhausted, consumer = bundled
    reported = [f"{MAX_DELIVERIES}.{one.stream}.{one.durable}" for one in s.consumers]
    contexts = {one.stream: _context_of(one.stream, one.durable) for one in s.consumers}
    streams = [
        replace(
            pattern,
            stream=stream,
            config=pattern.config
            | {
                "name": stream,
                "description": pattern.config["description"].replace("vibespro", upstream),
                "subjects": [f"{upstream}.event.>"],
            },
        )
        for stream, upstream in contexts.items()
        if upstream not in {"", s.context}
    ]
    durables = [
        Definition(
            stream=one.stream,
            durable=one.durable,
            config=consumer.config
            | {
                "name": one.durable,
                "durable_name": one.durable,
                "description": f"{s.context} consuming from {one.stream}",
                "filter_subject": f"{contexts[one.stream]}.event.>",
            },
        )
        for one in s.consumers
        if contexts[one.stream]
    ]
    only = reported[0] if len(reported) == 1 else ""
    return [
        replace(advisories, config=advisories.config | {"subjects": reported}),
        *(letters, events, *streams),
        replace(exhausted, config=exhausted.config | {"filter_subject": only}),
        *durables,
    ]


def _context_of(stream: str, durable: str) -> str:
    """Return the context that publishes to a stream; empty: unknown. Its hyphens are underscores in names."""
    if stream == events_stream(named := durable.partition(_UPSTREAM)[2]):
        return named
    guessed = stream.removesuffix("_EVENTS").lower()
    return guessed if events_stream(guessed) == stream else ""


def _in_folder(folder: Path, s: Settings) -> list[Definition]:
    """Read the files, with the own context in the place of the shipped one unless they have its name."""
    has_names = (folder / f"{stream_prefix(s.context)}_DLQ.json").is_file()
    context = _SHIPPED_CONTEXT if has_names else s.context
    found = []
    for file in _files(folder):
        was = _read(file, context)
        config = was | ({} if s.stream_replicas is None else {"num_replicas": s.stream_replicas})
        if s.stream_max_bytes is not None and not 0 <= was.get("max_bytes", -1) <= s.stream_max_bytes:
            config["max_bytes"] = s.stream_max_bytes
        by_setting = tuple(
            f"{key} {was.get(key)} -> {new}" for key, new in config.items() if new != was.get(key)
        )
        found.append(Definition(stream=config["name"], config=config, by_setting=by_setting))
    if not found:
        raise ContractError(f"{folder} holds no stream definition (*.json)")
    for file in _files(folder / "consumers"):
        stream, dot, _ = file.stem.partition(".")
        if not dot:
            raise ContractError(f"{file.name}: a consumer's file is called STREAM.durable.json")
        config = _read(file, context)
        found.append(Definition(stream=_renamed(stream, context), durable=config["name"], config=config))
    return found


def _files(folder: Path) -> list[Path]:
    try:
        return files_in(folder, ".json")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ContractError(f"{folder}: cannot be listed ({error.strerror})") from error


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
    text = re.sub(rf"(?<![A-Za-z0-9_]){_SHIPPED_CONTEXT}(?=__|[^A-Za-z0-9_])", context, text)
    return re.sub(rf"(?<![A-Za-z0-9_]){_SHIPPED_CONTEXT.upper()}(?=_)", stream_prefix(context), text)


def export_topology(s: Settings, folder: Path) -> list[Path]:
    """Write every definition into a folder that has none yet, for the nats CLI or to change them."""
    if _files(folder):
        raise ContractError(f"{folder} has definitions already; name another folder")
    files = []
    try:
        (folder / "consumers").mkdir(parents=True, exist_ok=True)
        for one in definitions(s):
            name = f"consumers/{one.stream}.{one.durable}" if one.durable else one.stream
            files.append(folder / f"{name}.json")
            files[-1].write_text(json.dumps(one.config, indent=2) + "\n")
    except OSError as error:
        raise ContractError(f"{folder}: cannot be written ({error.strerror})") from error
    return files


# --- Choose what a context wants.


def wanted_topology(s: Settings, *, streams: Collection[str] = ()) -> list[Definition]:
    """Return the definitions of this context, or those of ``streams``, which may be another context's.

    A context owns its streams with their consumers, and the durables that its settings name on other streams.
    """
    found = definitions(s)
    defined = _streams_of(found)
    if unknown := set(streams) - defined:
        raise ContractError(
            f"{', '.join(sorted(unknown))}: not defined; defined are {', '.join(sorted(defined))}"
        )
    own = {s.stream, s.dlq_stream, s.advisory_stream}
    durables = {(consumer.stream, consumer.durable) for consumer in s.consumers}
    return [
        one
        for one in found
        if (not streams or one.stream in streams)
        and (
            one.stream in own
            or (one.stream, one.durable) in durables
            or (not one.durable and one.stream in streams)
        )
    ]


def defined_streams(s: Settings) -> frozenset[str]:
    """Return every stream that has a definition, for a server that no other context uses."""
    return _streams_of(definitions(s))


def _streams_of(found: Collection[Definition]) -> frozenset[str]:
    return frozenset(one.stream for one in found if not one.durable)


# --- Compare with the server.

_NEEDED = {"backoff": [], "ack_policy": "explicit", "deliver_subject": "", "headers_only": False}
"""Fields of a consumer that the worker depends on, for definitions that do not name them."""
_SINCE: Mapping[str, tuple[int, int]] = {"allow_atomic": (2, 12), "allow_batched": (2, 14)}


async def check_topology(s: Settings, *, streams: Collection[str] = ()) -> list[Difference]:
    """Compare the definitions of this context, or of ``streams``, with the server."""
    wanted = wanted_topology(s, streams=streams)
    async with open_broker(s) as connection:
        return [*await check(connection, wanted), *await _without_file(connection, wanted, s)]


async def report_differences(s: Settings, events: Events) -> None:
    """At a worker's start, log each field that differs; only `streams apply` changes the streams."""
    try:
        found = await check_topology(s)
    except WorkerError as error:
        events.emit("streams_not_compared", text=str(error))
        return
    missing = {EXISTENCE, AWAITED}
    if text := "; ".join(str(difference) for difference in found if difference.field not in missing):
        events.emit("streams_differ", text=text)


async def check(connection: NatsConnection, wanted: Sequence[Definition]) -> list[Difference]:
    """Compare each definition; check advisories only if the stream that keeps them is among them."""
    own, advisories = _streams_of(wanted), _keeps_advisories(wanted)
    found = [await differences(connection, one, own=own, advisories=advisories) for one in wanted]
    return [difference for of_one in found for difference in of_one]


async def differences(
    connection: NatsConnection, one: Definition, *, own: Collection[str], advisories: bool = True
) -> list[Difference]:
    """Compare the fields that a definition names; ``own``: the streams that are defined with it."""
    found = await _existing(connection, one)
    if not found and await _awaits_stream(connection, one, own):
        stream = f"its stream, which another context creates (`streams apply --stream {one.stream}`)"
        return [Difference(name=one.label, field=AWAITED, wanted=stream, found="missing")]
    differing = _compared(one, _wanted(connection, one, found), found)
    if not (one.durable and found):
        return differing
    stream_now = await stream_info(connection, one.stream)
    for subject in found.get("filter_subjects") or [found.get("filter_subject", ">")]:
        if subject != ">" and not (
            stream_now.copies or stream_now.takes(subject)
        ):  # the server accepts it silently
            within = f"within {', '.join(stream_now.subjects)}"
            differing.append(Difference(name=one.label, field="filter_subject", wanted=within, found=subject))
    advisory = f"{MAX_DELIVERIES}.{one.stream}.{one.durable}"
    if advisories and found.get("max_deliver", -1) > 0 and not await streams_taking(connection, advisory):
        kept = f"{advisory} kept by a stream"
        differing.append(Difference(name=one.label, field="advisories", wanted=kept, found="not kept"))
    return differing


def _keeps_advisories(wanted: Sequence[Definition]) -> bool:
    return any(subject.startswith("$JS.") for one in wanted for subject in one.config.get("subjects", ()))


async def _without_file(
    connection: NatsConnection, wanted: Sequence[Definition], s: Settings
) -> list[Difference]:
    """Find durables of the settings that do not exist and that no file defines, if all is checked."""
    if not _keeps_advisories(wanted):
        return []
    defined = {(one.stream, one.durable) for one in definitions(s)}
    return [
        Difference(
            name=label(one.stream, one.durable),
            field="its file",
            wanted=f"consumers/{one.stream}.{one.durable}.json in SEA_MQ_STREAMS_FOLDER",
            found="missing",
        )
        for one in s.consumers
        if (one.stream, one.durable) not in defined
        and not await find_consumer(connection, one.stream, one.durable)
    ]


async def _existing(connection: NatsConnection, one: Definition) -> dict[str, Any]:
    """Return the server's configuration; empty if there is none.

    A stream that is missing at a server of an undeclared domain may be in another one: an error says so.
    """
    if one.durable:
        consumer = await find_consumer(connection, one.stream, one.durable)
        return _without_reserved(consumer.config) if consumer else {}
    stream = await find_stream(connection, one.stream)
    if stream is None and connection.undeclared_domain:
        raise missing_stream(connection, one.stream)
    return _without_reserved(stream.config) if stream else {}


async def _awaits_stream(connection: NatsConnection, one: Definition, own: Collection[str]) -> bool:
    return _is_foreign(one, own) and await find_stream(connection, one.stream) is None


def _is_foreign(one: Definition, own: Collection[str]) -> bool:
    """Whether it is a consumer of another context's stream."""
    return bool(one.durable) and one.stream not in own


def _wanted(connection: NatsConnection, one: Definition, found: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the fields that the connected server is too old for, and add those that stop the worker."""
    config = _without_reserved(one.config)
    if one.durable:
        config = _NEEDED | config
        if found.get("priority_policy"):
            config = {"priority_policy": "none", "priority_groups": []} | config
        if 0 < found.get("max_expires", 0) < PULL_SECONDS_MIN * 1e9:
            config = {"max_expires": 0} | config
    return {
        key: value for key, value in config.items() if connection.server_version >= _SINCE.get(key, (0, 0))
    }


def _without_reserved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the metadata that the server adds."""
    if "metadata" not in config:
        return dict(config)
    own = {key: value for key, value in config["metadata"].items() if not key.startswith("_nats.")}
    return {**config, "metadata": own}


def _compared(one: Definition, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    if not found:
        return [Difference(name=one.label, field=EXISTENCE, wanted="present", found="missing")]
    differing = []
    for key, value in wanted.items():
        there = found.get(key, type(value)())  # the server leaves out false, empty and 0
        if _unordered(value) != _unordered(there):
            differing.append(Difference(name=one.label, field=key, wanted=value, found=there))
    return differing


def _unordered(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, list) else value


# --- Apply.


async def apply_topology(
    s: Settings,
    *,
    streams: Collection[str] = (),
    dry_run: bool = False,
    on_change: Callable[[Change], None] = lambda _change: None,
) -> Applied:
    """Bring the server in line with the definitions of this context, or of ``streams``; see ``apply``."""
    wanted = wanted_topology(s, streams=streams)
    async with open_broker(s) as connection:
        applied = await apply(connection, wanted, dry_run=dry_run, on_change=on_change)
        if not dry_run:
            applied.differences.extend(await _without_file(connection, wanted, s))
    return applied


async def apply(
    connection: NatsConnection,
    wanted: Sequence[Definition],
    *,
    dry_run: bool = False,
    on_change: Callable[[Change], None] = lambda _change: None,
) -> Applied:
    """Create missing and update differing streams and consumers, then compare; delete nothing. Idempotent.

    A consumer of another context's stream stays an AWAITED difference while the stream is missing, or where
    only that context may create the consumer. ``on_change`` gets each change once it is made; changes before
    a refusal stay.
    """
    changes: list[Change] = []
    denied: set[str] = set()
    own = _streams_of(wanted)
    for one in wanted:
        found = await _existing(connection, one)
        if not found and await _awaits_stream(connection, one, own):
            continue
        config = _wanted(connection, one, found)
        differing = tuple(_compared(one, config, found))
        if not differing:
            continue
        if not dry_run:
            try:
                await _write(connection, one, config, found)
            except ApiRefusedError as error:
                what = "; ".join(f"{d.field} {d.found} -> {d.wanted}" for d in differing)
                fix = _FIXES.get(error.err_code, "").replace("{stream}", one.stream)
                raise ContractError(f"{one.label} ({what}): {error}{fix}") from error
            except PublishDeniedError as error:
                if not _is_foreign(one, own):
                    raise
                if found:
                    raise ContractError(f"{one.label} {_elsewhere(one.stream)}") from error
                denied.add(one.label)
                continue
        action = "updated" if found else "created"
        changes.append(
            Change(name=one.label, action=action, differences=differing, by_setting=one.by_setting)
        )
        on_change(changes[-1])
    left = await check(connection, wanted)
    if dry_run:
        left = [difference for difference in left if difference.field == AWAITED]
    streams = {one.label: one.stream for one in wanted if one.label in denied}
    return Applied(
        changes=changes,
        differences=[
            replace(one, field=AWAITED, wanted=f"another user: it {_elsewhere(streams[one.name])}")
            if one.name in streams
            else one
            for one in left
        ],
    )


async def _write(
    connection: NatsConnection, one: Definition, wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Create or update; an update keeps the server's fields that the definition does not name."""
    config = {**found, **wanted}
    if not one.durable:
        await api(connection, f"STREAM.{'UPDATE' if found else 'CREATE'}.{one.stream}", config)
        return
    subject = ".".join(
        filter(None, (f"CONSUMER.CREATE.{one.stream}.{one.durable}", config.get("filter_subject")))
    )
    action = "update" if found else "create"
    await api(connection, subject, {"stream_name": one.stream, "config": config, "action": action})


def _elsewhere(stream: str) -> str:
    """Return who creates and changes a consumer of another context's stream, where this user may not."""
    there = f"`streams apply --stream {stream}` there, with this context's consumers"
    return f"belongs to a stream of another context, whose user creates it: {there}"


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
"""What to do about an error code of the server."""
