"""Definitions of streams and consumers as resources for Kubernetes (NATS' controller NACK) or Terraform.

Both are JSON: ``kubectl apply -f`` takes a list of resources, and Terraform takes a file ``*.tf.json``.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from sea_mq_worker.adapters.nats.manage.definitions import ConsumerDefinition, Definition, StreamDefinition
from sea_mq_worker.domain.errors import ContractError

Format = Literal["nack", "terraform"]

_NANOSECONDS = 10**9
_NACK_LACKS = {"allow_batched"}
"""Fields that are left out: a stream without them serves fewer publish modes, and always ``pipeline``."""


def _seconds(nanoseconds: int) -> int:
    return nanoseconds // _NANOSECONDS


def _go_duration(nanoseconds: int) -> str:
    return f"{_seconds(nanoseconds)}s"


def _same(value: Any) -> Any:
    return value


_Fields = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""By field of the definition: name and conversion in the other format."""

_NACK_STREAM: _Fields = {
    **{
        name: (name, _same) for name in ("name", "description", "subjects", "retention", "storage", "discard")
    },
    "num_replicas": ("replicas", _same),
    "max_age": ("maxAge", _go_duration),
    "max_bytes": ("maxBytes", _same),
    "max_msgs": ("maxMsgs", _same),
    "max_msgs_per_subject": ("maxMsgsPerSubject", _same),
    "max_msg_size": ("maxMsgSize", _same),
    "max_consumers": ("maxConsumers", _same),
    "no_ack": ("noAck", _same),
    "duplicate_window": ("duplicateWindow", _go_duration),
    "allow_direct": ("allowDirect", _same),
    "allow_atomic": ("allowAtomicPublish", _same),
    "deny_delete": ("denyDelete", _same),
    "deny_purge": ("denyPurge", _same),
}
_NACK_CONSUMER: _Fields = {
    "durable_name": ("durableName", _same),
    "description": ("description", _same),
    "filter_subject": ("filterSubject", _same),
    "filter_subjects": ("filterSubjects", _same),
    "deliver_policy": ("deliverPolicy", _same),
    "ack_policy": ("ackPolicy", _same),
    "ack_wait": ("ackWait", _go_duration),
    "replay_policy": ("replayPolicy", _same),
    "max_waiting": ("maxWaiting", _same),
    "max_deliver": ("maxDeliver", _same),
    "max_ack_pending": ("maxAckPending", _same),
    "num_replicas": ("replicas", _same),
}
_TERRAFORM_STREAM: _Fields = {
    **{name: (name, _same) for name in _NACK_STREAM},
    "num_replicas": ("replicas", _same),
    "max_age": ("max_age", _seconds),
    "duplicate_window": ("duplicate_window", _seconds),
    "no_ack": ("ack", lambda no_ack: not no_ack),
}
_TERRAFORM_LACKS = {*_NACK_LACKS, "allow_atomic"}
_TERRAFORM_CONSUMER: _Fields = {
    **{name: (name, _same) for name in _NACK_CONSUMER if name != "deliver_policy"},
    "ack_wait": ("ack_wait", _seconds),
    "max_deliver": ("max_delivery", _same),
    "num_replicas": ("replicas", _same),
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
            kind, spec = "Stream", _converted(each.name, each.config, _NACK_STREAM, _NACK_LACKS)
        else:
            kind, spec = "Consumer", _converted(each.name, _of_consumer(each), _NACK_CONSUMER)
            spec["streamName"] = each.stream
        name = each.name.lower().replace("_", "-")
        resource = {"apiVersion": "jetstream.nats.io/v1beta2", "kind": kind, "metadata": {"name": name}}
        items.append(resource | {"spec": spec})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _terraform(definitions: Collection[Definition]) -> dict[str, Any]:
    streams, consumers = {}, {}
    for each in definitions:
        if isinstance(each, StreamDefinition):
            streams[each.name] = _converted(each.name, each.config, _TERRAFORM_STREAM, _TERRAFORM_LACKS)
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
        **_converted(consumer.name, config, _TERRAFORM_CONSUMER),
    }


def _of_consumer(consumer: ConsumerDefinition) -> dict[str, Any]:
    """Leave out the name, which repeats the durable's, and replicas that follow the stream's."""
    return {
        name: value
        for name, value in consumer.config.items()
        if name != "name" and (name, value) != ("num_replicas", 0)
    }


def _converted(
    owner: str, config: Mapping[str, Any], fields: _Fields, left_out: Collection[str] = ()
) -> dict[str, Any]:
    if unknown := sorted(config.keys() - fields.keys() - set(left_out)):
        raise ContractError(f"{owner}: this format cannot express {', '.join(unknown)}")
    known = [(fields[name], value) for name, value in config.items() if name not in left_out]
    return {name: convert(value) for (name, convert), value in known}
