"""Definitions of streams and consumers as resources for Kubernetes (NATS' controller NACK) or Terraform.

Both are JSON: ``kubectl apply -f`` takes a list of resources, and Terraform takes a file ``*.tf.json``.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from sea_mq_worker.adapters.nats.manage.definitions import ConsumerDefinition, Definition, StreamDefinition
from sea_mq_worker.domain.errors import ContractError

Format = Literal["nack", "terraform"]

_NANOSECONDS = 10**9
_STREAM_FIELDS = {
    *("name", "description", "subjects", "retention", "storage", "discard", "num_replicas"),
    *("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject", "max_msg_size", "max_consumers"),
    *("no_ack", "duplicate_window", "allow_direct", "allow_atomic", "allow_batched"),
    *("deny_delete", "deny_purge"),
}
_CONSUMER_FIELDS = {
    *("durable_name", "description", "filter_subject", "filter_subjects", "deliver_policy"),
    *("ack_policy", "ack_wait", "replay_policy", "max_waiting", "max_deliver", "max_ack_pending"),
    "num_replicas",
}
_DURATIONS = {"max_age", "duplicate_window", "ack_wait"}
_LACKS: Mapping[Format, Collection[str]] = {
    "nack": {"allow_batched"},
    "terraform": {"allow_batched", "allow_atomic"},
}
"""Fields that are left out: a stream without them serves fewer publish modes, and always ``pipeline``."""
_RENAMED: Mapping[Format, Mapping[str, str]] = {
    "nack": {"num_replicas": "replicas", "allow_atomic": "allowAtomicPublish"},
    "terraform": {"num_replicas": "replicas", "max_deliver": "max_delivery", "no_ack": "ack"},
}


def exported(definitions: Collection[Definition], form: Format) -> dict[str, Any]:
    """Return the definitions as one JSON document.

    Raises:
        ContractError: a definition has a field that the format cannot express.
    """
    return _nack(definitions) if form == "nack" else _terraform(definitions)


def _nack(definitions: Collection[Definition]) -> dict[str, Any]:
    items = []
    for each in definitions:
        if isinstance(each, StreamDefinition):
            kind, spec = "Stream", _converted(each, each.config, "nack")
        else:
            kind, spec = "Consumer", _converted(each, _of_consumer(each), "nack")
            spec["streamName"] = each.stream
        name = each.name.lower().replace("_", "-")
        resource = {"apiVersion": "jetstream.nats.io/v1beta2", "kind": kind, "metadata": {"name": name}}
        items.append(resource | {"spec": spec})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _terraform(definitions: Collection[Definition]) -> dict[str, Any]:
    streams, consumers = {}, {}
    for each in definitions:
        if isinstance(each, StreamDefinition):
            streams[each.name] = _converted(each, each.config, "terraform")
        else:
            consumers[each.name] = _terraform_consumer(each, is_own=each.stream in streams)
    resources = {"jetstream_stream": streams, "jetstream_consumer": consumers}
    return {"resource": {kind: found for kind, found in resources.items() if found}}


def _terraform_consumer(consumer: ConsumerDefinition, *, is_own: bool) -> dict[str, Any]:
    config = _of_consumer(consumer)
    policy = config.pop("deliver_policy", "all")
    reference = f"${{jetstream_stream.{consumer.stream}.id}}"
    return {
        "stream_id": reference if is_own else f"JETSTREAM_STREAM_{consumer.stream}",
        f"deliver_{policy}": True,
        **_converted(consumer, config, "terraform"),
    }


def _of_consumer(consumer: ConsumerDefinition) -> dict[str, Any]:
    """Leave out the name, which repeats the durable's, and replicas that follow the stream's."""
    return {
        name: value
        for name, value in consumer.config.items()
        if name != "name" and (name, value) != ("num_replicas", 0)
    }


def _converted(owner: Definition, config: Mapping[str, Any], form: Format) -> dict[str, Any]:
    known = _STREAM_FIELDS if isinstance(owner, StreamDefinition) else _CONSUMER_FIELDS
    if unknown := sorted(config.keys() - known):
        raise ContractError(f"{owner.name}: this format cannot express {', '.join(unknown)}")
    fields = [field for field in config if field not in _LACKS[form]]
    return {_name(field, form): _value(field, config[field], form) for field in fields}


def _name(field: str, form: Format) -> str:
    first, *others = field.split("_")
    usual = first + "".join(map(str.title, others)) if form == "nack" else field
    return _RENAMED[form].get(field, usual)


def _value(field: str, value: Any, form: Format) -> Any:
    if field in _DURATIONS:
        seconds = value // _NANOSECONDS
        return f"{seconds}s" if form == "nack" else seconds
    return not value if (field, form) == ("no_ack", "terraform") else value
