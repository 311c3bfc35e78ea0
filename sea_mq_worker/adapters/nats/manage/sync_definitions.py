"""Compares the server's streams and consumers with their definitions, and creates or updates them.

Configurations stay raw JSON: nats-py's dataclasses drop unknown fields, so an update would lose settings.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import ApiRefusedError, PublishDeniedError
from sea_mq_worker.adapters.nats.manage.definitions import (
    MAX_DELIVERIES,
    ConsumerDefinition,
    Definition,
    StreamDefinition,
)
from sea_mq_worker.adapters.nats.server_info import (
    PULL_SECONDS_MIN,
    ConsumerInfo,
    StreamInfo,
    find_consumer,
    find_stream,
    missing_stream,
    stream_info,
    streams_taking,
)
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.topology import AWAITED, EXISTENCE, Change, Difference

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
            stream = (
                f"its stream, which another context creates (`streams apply --stream {_stream(definition)}`)"
            )
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


def _stream(definition: Definition) -> str:
    return definition.stream if isinstance(definition, ConsumerDefinition) else definition.name


async def _waits_for_stream(
    connection: NatsConnection, definition: Definition, definitions: Sequence[Definition]
) -> bool:
    if not is_foreign(definition, definitions):
        return False
    return await find_stream(connection, _stream(definition)) is None


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
        Difference(name=name, field=field, wanted=value, found=_value(found, field, value))
        for field, value in wanted.items()
        if _comparable(value) != _comparable(_value(found, field, value))
    ]


def _value(found: Mapping[str, Any], field: str, wanted: object) -> Any:
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
    stream = _stream(definition)
    fix = _FIXES.get(error.err_code, "").replace("{stream}", stream)
    return ContractError(f"{definition.label} ({what}): {error}{fix}")
