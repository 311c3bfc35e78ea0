"""Definitions as files, and their application to a server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.subjects import durable_consumer, events_stream
from sea_mq_worker.operators.definitions import (
    MAX_DELIVERIES,
    Definition,
    StreamDefinition,
    apply,
    check,
    definitions,
    derived_definitions,
)
from sea_mq_worker.resources import resource_folder
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


@pytest.fixture
def folder(tmp_path: Path, names: str) -> Path:
    return shipped_files(tmp_path, upstream=f"{names}v")


@pytest.fixture
def wanted(folder: Path, names: str) -> list[Definition]:
    return small(folder, names)


def small(folder: Path, context: str, *, max_bytes: int = MEGABYTE) -> list[Definition]:
    """Read the definitions for one server with little room."""
    return definitions(folder, context=context, replicas=1, max_bytes=max_bytes)


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
    [config] = [found.config for found in definitions(resource_folder("streams")) if found.name == name]
    assert {field: config[field] for field in specified} == specified


def test_another_context_takes_the_place_of_the_shipped_one() -> None:
    found = definitions(resource_folder("streams"), context="shop")
    assert [(d.name, *d.config.get("subjects", [])) for d in found] == [
        ("SHOP_ADVISORIES", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.VIBESPRO_EVENTS.shop__from_vibespro"),
        ("SHOP_DLQ", "shop.dlq.>"),
        ("SHOP_EVENTS", "shop.event.>"),
        ("VIBESPRO_EVENTS", "vibespro.event.>"),
        ("shop__max_deliveries",),
        ("shop__from_vibespro",),
    ]


def test_derived_definitions_of_the_bundled_consumer_are_the_bundled_files() -> None:
    derived = derived_definitions([("VIBESPRO_EVENTS", "sea__from_vibespro")], context="sea")
    assert derived == definitions(resource_folder("streams")) == derived_definitions([], context="sea")


@pytest.mark.parametrize(
    ("context", "upstream", "streams"),
    [
        ("vibespro", "sea", ["VIBESPRO_ADVISORIES", "VIBESPRO_DLQ", "VIBESPRO_EVENTS", "SEA_EVENTS"]),
        ("a-b", "c-d", ["A_B_ADVISORIES", "A_B_DLQ", "A_B_EVENTS", "C_D_EVENTS"]),
    ],
)
def test_names_and_subjects_follow_from_both_contexts(
    context: str, upstream: str, streams: list[str]
) -> None:
    consumer = durable_consumer(context, upstream)
    found = derived_definitions([consumer], context=context)
    assert [d.name for d in found if isinstance(d, StreamDefinition)] == streams
    by_name = {d.name: d.config for d in found}
    assert by_name[events_stream(upstream)]["subjects"] == [f"{upstream}.event.>"]
    assert by_name[consumer[1]]["filter_subject"] == f"{upstream}.event.>"
    assert by_name[streams[0]]["subjects"] == [f"{MAX_DELIVERIES}.{'.'.join(consumer)}"]


def test_a_stream_of_unknown_subjects_has_no_derived_definition() -> None:
    found = derived_definitions([("ORDERS", "sea__orders")], context="sea")
    assert {d.name for d in found} == {"SEA_ADVISORIES", "SEA_DLQ", "SEA_EVENTS", "sea__max_deliveries"}


def test_fields_changed_by_settings_are_listed() -> None:
    found = definitions(resource_folder("streams"), replicas=1, max_bytes=2**30)
    reported = {d.name: d.by_setting for d in found if isinstance(d, StreamDefinition)}
    assert set(reported["SEA_EVENTS"]) == {"num_replicas 3 -> 1", "max_bytes 10737418240 -> 1073741824"}
    assert reported["SEA_ADVISORIES"] == ("num_replicas 3 -> 1",)


def test_a_folder_without_definitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no stream definition"):
        definitions(tmp_path)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('{"subjects": ["x"]}', "it has no name"),
        ('{"name": "X", "max_age": "7d"}', "max_age is not a whole number"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_definition_is_named(tmp_path: Path, text: str, reported: str) -> None:
    (tmp_path / "X.json").write_text(text)
    with pytest.raises(ContractError, match=rf"X\.json: .*{reported}"):
        definitions(tmp_path)


@pytest.mark.clause("streams")
async def test_missing_ones_are_reported_then_created_and_then_in_line(
    connection: NatsConnection, wanted: list[Definition]
) -> None:
    assert {d.field for d in await check(connection, wanted)} == {"existence"}
    assert [change.action for change in await apply(connection, wanted)] == ["created"] * len(wanted)
    assert await check(connection, wanted) == []
    assert await apply(connection, wanted) == []


async def test_apply_names_and_fixes_differences_and_keeps_undefined_fields(
    connection: NatsConnection, wanted: list[Definition], names: str
) -> None:
    await apply(connection, wanted)
    stream, durable = f"{names.upper()}V_EVENTS", f"{names}__from_{names}v"
    changed = (await consumer_info(connection, stream, durable))["config"]
    changed |= {"ack_wait": 30 * SECOND, "backoff": [SECOND], "headers_only": True}
    changed |= {"metadata": {"team": "blue"}}
    await api(
        connection,
        f"CONSUMER.CREATE.{stream}.{durable}.{names}v.event.>",
        {"stream_name": stream, "config": changed, "action": "update"},
    )
    found = {d.field: (d.wanted, d.found) for d in await check(connection, wanted)}
    assert found == {
        "ack_wait": (120 * SECOND, SECOND),
        "backoff": ([], [SECOND]),
        "headers_only": (False, True),
    }
    assert [change.action for change in await apply(connection, wanted)] == ["updated"]
    assert await check(connection, wanted) == []
    after = (await consumer_info(connection, stream, durable))["config"]
    assert after["metadata"]["team"] == "blue"


async def test_what_cannot_be_changed_is_refused_with_what_to_do(
    connection: NatsConnection, wanted: list[Definition], folder: Path, names: str
) -> None:
    await apply(connection, wanted)
    change_json(folder / "SEA_EVENTS.json", storage="memory")
    with pytest.raises(ContractError, match=r"storage file -> memory.*nats stream rm"):
        await apply(connection, small(folder, names))


@pytest.mark.parametrize(
    ("setting", "asked", "max_bytes"),
    [
        ("SEA_MQ_STREAM_REPLICAS", {"max_bytes": MEGABYTE}, MEGABYTE),
        ("SEA_MQ_STREAM_MAX_BYTES", {"replicas": 1}, 2**60),
    ],
)
async def test_what_a_server_has_no_room_for_names_the_setting(
    *,
    connection: NatsConnection,
    folder: Path,
    names: str,
    setting: str,
    asked: dict[str, int],
    max_bytes: int,
) -> None:
    change_json(folder / "SEA_EVENTS.json", max_bytes=max_bytes)
    with pytest.raises(ContractError, match=setting):
        await apply(connection, definitions(folder, context=names, **asked))


async def test_a_consumer_without_advisories_is_found(
    connection: NatsConnection, wanted: list[Definition], folder: Path, names: str
) -> None:
    await apply(connection, wanted)
    stream, durable = f"{names.upper()}V_EVENTS", "other"
    await create_consumer(connection, stream, durable, filter_subject=f"{names}v.event.>", max_deliver=3)
    config = (await consumer_info(connection, stream, durable))["config"]
    (folder / "consumers" / f"{stream}.{durable}.json").write_text(json.dumps(config))
    found = await check(connection, small(folder, names))
    assert [d.field for d in found] == ["advisories"]


@pytest.mark.parametrize("copying", [lambda of: {"mirror": of}, lambda of: {"sources": [of]}])
async def test_a_consumer_of_a_stream_that_copies_another_is_in_line(
    connection: NatsConnection,
    folder: Path,
    names: str,
    copying: Callable[[dict[str, str]], dict[str, Any]],
) -> None:
    await create_stream(connection, f"{names}_ORIGIN", f"{names}v.event.>")
    stream = f"{names.upper()}V_EVENTS"
    config = {
        "name": stream,
        "num_replicas": 1,
        "max_bytes": MEGABYTE,
        **copying({"name": f"{names}_ORIGIN"}),
    }
    await api(connection, f"STREAM.CREATE.{stream}", config)
    durable = [one for one in small(folder, names) if one.label.endswith(f"of stream {stream}")]
    assert [change.action for change in await apply(connection, durable)] == ["created"]
    assert await check(connection, durable, advisories=False) == []


async def test_two_contexts_consume_one_stream_side_by_side(
    connection: NatsConnection, folder: Path, names: str
) -> None:
    both = [*small(folder, f"{names}a"), *small(folder, f"{names}b")]
    await apply(connection, both)
    assert await check(connection, both) == []
