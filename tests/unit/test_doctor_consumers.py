"""Doctor reports a consumer from a bound on, and nothing that is on the good side of the bound."""

from typing import Any

import pytest

from sea_mq_worker.doctor.broker import BrokerFacts, consumer_findings
from sea_mq_worker.settings import ConsumerSettings, Settings
from tests.unit.test_nats import consumer, stream

SECOND = 1_000_000_000
SOUND = {"ack_policy": "explicit", "ack_wait": 90 * SECOND, "max_deliver": 16, "max_ack_pending": 50}
NOW = {"ts": "2026-11-02T00:00:00Z"}
JUST_NOW = "2026-11-01T23:59:00Z"


def at(seq: int, last_active: str = "2026-11-01T12:00:00Z") -> dict[str, Any]:
    return {"consumer_seq": seq, "stream_seq": seq, "last_active": last_active}


@pytest.mark.parametrize(
    ("config", "given", "found"),
    [
        ({}, {}, set()),
        ({"ack_wait": 61 * SECOND}, {}, set()),
        ({"ack_wait": 60 * SECOND}, {}, {"consumer_unfit"}),
        ({"max_deliver": 15}, {}, {"consumer_unfit"}),
        ({}, {"num_ack_pending": 50}, {"consumer_unattended"}),
        ({}, {"num_ack_pending": 49}, set()),
        ({}, {"num_ack_pending": 50, "ack_floor": at(5, JUST_NOW)}, set()),
        ({}, {"num_ack_pending": 50, "delivered": at(5, JUST_NOW)}, set()),
        ({}, {"num_pending": 1}, {"consumer_unattended"}),
        ({}, {"num_pending": 1, "num_waiting": 1}, set()),
        ({}, {"num_pending": 1, "delivered": at(5, JUST_NOW)}, set()),
        ({}, {"num_pending": 1, "num_waiting": 1, "oldest": 180.0}, set()),
        ({}, {"num_pending": 1, "num_waiting": 1, "oldest": 181.0}, {"consumer_behind"}),
        ({}, {"delivered": at(4)}, {"messages_missed"}),
        ({"filter_subject": "a.b"}, {"delivered": at(4)}, set()),
    ],
)
def test_a_consumer_is_reported_from_a_bound_on(
    config: dict[str, Any], given: dict[str, Any], found: set[str]
) -> None:
    """The stream begins at 6; the consumer was last active twelve hours ago, unless it was just now.

    ``oldest``: the age of its oldest undelivered message.
    """
    oldest = {("S", "c"): given.pop("oldest")} if "oldest" in given else {}
    own = consumer(SOUND | config, **NOW | {"delivered": at(5), "ack_floor": at(5)} | given)
    facts = BrokerFacts(
        streams={"S": stream({"subjects": ["a.>"]}, messages=4, first_seq=6, last_seq=9)},
        consumers={("S", "c"): own},
        oldest_seconds=oldest,
    )
    settings = Settings(consumers=(ConsumerSettings(stream="S", durable="c"),))
    assert {finding.slug for finding in consumer_findings(facts, settings)} == found
