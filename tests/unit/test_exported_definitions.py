"""The shipped definitions as resources of NACK and Terraform."""

import dataclasses

import pytest

from sea_mq_worker.adapters.nats.manage.definitions import Definition, StreamDefinition, definitions
from sea_mq_worker.adapters.nats.manage.exported_definitions import exported
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.resources import resource_folder


@pytest.fixture
def shipped() -> list[Definition]:
    return definitions(resource_folder("streams"), context="shop")


def test_kubernetes_resources_have_durations_and_names_of_their_own(shipped: list[Definition]) -> None:
    found = exported(shipped, "nack")

    items = {(item["kind"], item["metadata"]["name"]): item["spec"] for item in found["items"]}
    assert {item["apiVersion"] for item in found["items"]} == {"jetstream.nats.io/v1beta2"}
    stream = items["Stream", "shop-events"]
    assert (stream["name"], stream["maxAge"], stream["replicas"]) == ("SHOP_EVENTS", "604800s", 3)
    assert stream["allowAtomicPublish"]
    consumer = items["Consumer", "shop--from-vibespro"]
    assert (consumer["streamName"], consumer["durableName"]) == ("VIBESPRO_EVENTS", "shop__from_vibespro")
    assert (consumer["ackWait"], consumer["maxDeliver"]) == ("120s", 20)
    assert "replicas" not in consumer


def test_terraform_resources_refer_to_each_other(shipped: list[Definition]) -> None:
    found = exported(shipped, "terraform")["resource"]

    stream = found["jetstream_stream"]["SHOP_EVENTS"]
    assert (stream["max_age"], stream["duplicate_window"], stream["ack"]) == (604800, 3600, True)
    consumer = found["jetstream_consumer"]["shop__from_vibespro"]
    assert consumer["stream_id"] == "${jetstream_stream.VIBESPRO_EVENTS.id}"
    assert (consumer["deliver_all"], consumer["max_delivery"], consumer["ack_wait"]) == (True, 20, 120)


def test_a_consumer_of_another_tools_stream_names_it(shipped: list[Definition]) -> None:
    consumers = [each for each in shipped if not isinstance(each, StreamDefinition)]

    found = exported(consumers, "terraform")["resource"]

    assert found.keys() == {"jetstream_consumer"}
    stream = found["jetstream_consumer"]["shop__from_vibespro"]["stream_id"]
    assert stream == "JETSTREAM_STREAM_VIBESPRO_EVENTS"


def test_a_field_that_a_format_cannot_express_is_an_error(shipped: list[Definition]) -> None:
    first = shipped[0]
    changed = dataclasses.replace(first, config={**first.config, "republish": {"src": ">", "dest": "x.>"}})

    with pytest.raises(ContractError, match=f"{first.name}: this format cannot express republish"):
        exported([changed], "nack")
