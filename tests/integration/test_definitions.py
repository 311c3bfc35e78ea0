"""Definitions of streams and consumers: read, derived, compared with a server and applied to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.subjects import durable_consumer
from sea_mq_worker.operators.definitions import (
    MAX_DELIVERIES,
    Applied,
    Definition,
    apply,
    apply_topology,
    check,
    check_topology,
    definitions,
)
from sea_mq_worker.settings import ConsumerSettings, Settings
from tests.support.jetstream import DAY, SECOND, consumer_info, create_consumer, create_stream, shipped_files
from tests.support.worker import change_json

MEGABYTE = 2**20
LIMITS = {
    "retention": "limits",
    "max_age": 7 * DAY,
    "max_bytes": 10 * 2**30,
    "storage": "file",
    "num_replicas": 3,
}
CONSUMER = {
    "durable_name": "sea__from_vibespro",
    "filter_subject": "vibespro.event.>",
    "ack_policy": "explicit",
    "ack_wait": 120 * SECOND,
    "max_deliver": 20,
    "max_ack_pending": 50,
}


class World:
    """Files of a context and of the one that it consumes from, and a server with little room."""

    def __init__(self, folder: Path, nats_url: str, name: str) -> None:
        self.folder = shipped_files(folder, upstream=f"{name}v")
        self.stream, self.durable = f"{name.upper()}V_EVENTS", f"{name}__from_{name}v"
        self.given: dict[str, Any] = {
            "context": name,
            "consumers": f"{self.stream}/{self.durable}",
            "nats_url": nats_url,
            "streams_folder": folder,
            "stream_replicas": 1,
            "stream_max_bytes": MEGABYTE,
        }

    def settings(self, **other: Any) -> Settings:
        return Settings.model_validate(self.given | other)

    def wanted(self, **other: Any) -> list[Definition]:
        return definitions(self.settings(**other))

    async def apply(self, **other: Any) -> Applied:
        s = self.settings(**other)
        return await apply_topology(s, streams={one.stream for one in definitions(s)})


@pytest.fixture
def world(tmp_path: Path, nats_url: str, names: str) -> World:
    return World(tmp_path, nats_url, names)


def streams_of(found: list[Definition]) -> list[str]:
    return [one.stream for one in found if not one.durable]


@pytest.mark.clause(
    "CMD-052-idempotency", "EVT-047-002", "streams", "durable-consumer", "durable-consumer-max-deliver"
)
@pytest.mark.parametrize(
    ("name", "specified"),
    [
        ("SEA_EVENTS", {"subjects": ["sea.event.>"], **LIMITS}),
        ("VIBESPRO_EVENTS", {"subjects": ["vibespro.event.>"], **LIMITS}),
        ("SEA_DLQ", {"subjects": ["sea.dlq.>"], "duplicate_window": DAY}),
        ("sea__from_vibespro", CONSUMER),
    ],
)
def test_a_file_has_the_specified_values(name: str, specified: dict[str, Any]) -> None:
    [config] = [one.config for one in definitions(Settings(consumers=())) if one.config["name"] == name]
    assert {field: config[field] for field in specified} == specified


def test_definitions_of_the_bundled_consumer_are_the_bundled_files() -> None:
    assert definitions(Settings()) == definitions(Settings(consumers=()))


@pytest.mark.parametrize(
    ("context", "upstream", "streams"),
    [
        ("shop", "vibespro", ["SHOP_ADVISORIES", "SHOP_DLQ", "SHOP_EVENTS", "VIBESPRO_EVENTS"]),
        ("vibespro", "sea", ["VIBESPRO_ADVISORIES", "VIBESPRO_DLQ", "VIBESPRO_EVENTS", "SEA_EVENTS"]),
        ("a-b", "c-d", ["A_B_ADVISORIES", "A_B_DLQ", "A_B_EVENTS", "C_D_EVENTS"]),
    ],
)
def test_names_and_subjects_follow_from_both_contexts(
    context: str, upstream: str, streams: list[str]
) -> None:
    stream, durable = durable_consumer(context, upstream)
    consumers = f"{stream}/{durable}"
    found = definitions(Settings.model_validate({"context": context, "consumers": consumers}))
    assert streams_of(found) == streams
    configs = {(one.stream, one.durable): one.config for one in found}
    assert configs[stream, ""]["subjects"] == [f"{upstream}.event.>"]
    assert configs[stream, durable]["filter_subject"] == f"{upstream}.event.>"
    assert configs[streams[0], ""]["subjects"] == [f"{MAX_DELIVERIES}.{stream}.{durable}"]
    assert configs[streams[1], ""]["subjects"] == [f"{context}.dlq.>"]


def test_a_stream_of_unknown_subjects_has_no_derived_definition() -> None:
    found = definitions(Settings(consumers=(ConsumerSettings(stream="ORDERS", durable="sea__orders"),)))
    assert streams_of(found) == ["SEA_ADVISORIES", "SEA_DLQ", "SEA_EVENTS"]
    assert [one.durable for one in found if one.durable] == ["sea__max_deliveries"]


def test_fields_changed_by_settings_are_listed() -> None:
    found = {one.stream: one for one in definitions(Settings(stream_replicas=1, stream_max_bytes=2**30))[:4]}
    changed = {"num_replicas 3 -> 1", "max_bytes 10737418240 -> 1073741824"}
    assert set(found["SEA_EVENTS"].by_setting) == changed
    assert found["SEA_ADVISORIES"].by_setting == ("num_replicas 3 -> 1",)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "no stream definition"),
        ('{"subjects": ["x"]}', r"X\.json: .*it has no name"),
        ('{"name": "X", "max_age": "7d"}', r"X\.json: .*max_age is not a whole number"),
        ("[" * 100_000, r"X\.json: .*cannot be read as JSON"),
    ],
)
def test_a_folder_or_file_without_a_definition_is_named(tmp_path: Path, text: str, reported: str) -> None:
    if text:
        (tmp_path / "X.json").write_text(text)
    with pytest.raises(ContractError, match=reported):
        definitions(Settings(streams_folder=tmp_path))


@pytest.mark.clause("streams")
async def test_missing_ones_are_reported_then_created_and_then_in_line(world: World) -> None:
    every = world.wanted()
    assert {d.field for d in await check_topology(world.settings(), streams=streams_of(every))} == {
        "existence"
    }
    assert [change.action for change in (await world.apply()).changes] == ["created"] * len(every)
    assert await world.apply() == Applied()


async def test_apply_names_and_fixes_differences_and_keeps_undefined_fields(
    connection: NatsConnection, world: World
) -> None:
    await world.apply()
    stream, durable = world.stream, world.durable
    changed = (await consumer_info(connection, stream, durable))["config"]
    changed |= {"ack_wait": 30 * SECOND, "backoff": [SECOND], "headers_only": True}
    changed |= {"metadata": {"team": "blue"}}
    subject = f"CONSUMER.CREATE.{stream}.{durable}.{changed['filter_subject']}"
    await api(connection, subject, {"stream_name": stream, "config": changed, "action": "update"})
    assert {d.field: (d.wanted, d.found) for d in await check(connection, world.wanted())} == {
        "ack_wait": (120 * SECOND, SECOND),
        "backoff": ([], [SECOND]),
        "headers_only": (False, True),
    }
    applied = await world.apply()
    assert ([change.action for change in applied.changes], applied.differences) == (["updated"], [])
    after = (await consumer_info(connection, stream, durable))["config"]
    assert after["metadata"]["team"] == "blue"


async def test_what_cannot_be_changed_is_refused_with_what_to_do(world: World) -> None:
    await world.apply()
    change_json(world.folder / "SEA_EVENTS.json", storage="memory")
    with pytest.raises(ContractError, match=r"storage file -> memory.*nats stream rm"):
        await world.apply()


@pytest.mark.parametrize(
    ("setting", "asked", "max_bytes"),
    [
        ("SEA_MQ_STREAM_REPLICAS", {"stream_replicas": None}, MEGABYTE),
        ("SEA_MQ_STREAM_MAX_BYTES", {"stream_max_bytes": None}, 2**60),
    ],
)
async def test_what_a_server_has_no_room_for_names_the_setting(
    world: World, setting: str, asked: dict[str, None], max_bytes: int
) -> None:
    change_json(world.folder / "SEA_EVENTS.json", max_bytes=max_bytes)
    with pytest.raises(ContractError, match=setting):
        await world.apply(**asked)


async def test_a_consumer_without_advisories_is_found(connection: NatsConnection, world: World) -> None:
    await world.apply()
    filtered = {"filter_subject": f"{world.given['context']}v.event.>", "max_deliver": 3}
    await create_consumer(connection, world.stream, "other", **filtered)
    config = (await consumer_info(connection, world.stream, "other"))["config"]
    (world.folder / "consumers" / f"{world.stream}.other.json").write_text(json.dumps(config))
    assert [d.field for d in await check(connection, world.wanted())] == ["advisories"]


@pytest.mark.parametrize("copying", ["mirror", "sources"])
async def test_a_consumer_of_a_stream_that_copies_another_is_in_line(
    connection: NatsConnection, world: World, copying: str
) -> None:
    origin = {"name": f"{world.stream}_ORIGIN"}
    await create_stream(connection, origin["name"], f"{world.given['context']}v.event.>")
    config = {"name": world.stream, "num_replicas": 1, "max_bytes": MEGABYTE}
    await api(
        connection,
        f"STREAM.CREATE.{world.stream}",
        config | {copying: origin if copying == "mirror" else [origin]},
    )
    applied = await apply(connection, [one for one in world.wanted() if one.durable == world.durable])
    assert ([change.action for change in applied.changes], applied.differences) == (["created"], [])


async def test_two_contexts_consume_one_stream_side_by_side(connection: NatsConnection, world: World) -> None:
    name = world.given["context"]
    both = [*world.wanted(context=f"{name}a"), *world.wanted(context=f"{name}b")]
    assert (await apply(connection, both)).differences == []
