"""Definitions without files of one's own: they follow from the names of the consumers.

The bundled files define the stream and the consumer of one other context, ``vibespro``. They are the pattern
for the streams and consumers of all other contexts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sea_mq_worker.adapters.nats.manage.definitions import (
    MAX_DELIVERIES,
    ConsumerDefinition,
    Definition,
    definitions,
)
from sea_mq_worker.domain.subjects import events_stream
from sea_mq_worker.resources import resource_folder

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
