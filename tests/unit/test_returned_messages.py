"""The memory of messages that were given back."""

from typing import Any

from sea_mq_worker.inbox.message import GivenBack
from sea_mq_worker.inbox.rescue import ReturnedMessages
from tests.support.builders import inbound_message

CONSUMER: Any = object()


def test_a_type_takes_its_own_and_thousands_may_wait_for_bodies_are_not_kept() -> None:
    returned = ReturnedMessages(CONSUMER, clock=lambda: 0.0)
    message = inbound_message(reply="$JS.ACK.x", payload=b"x" * 1024)
    for seq, event_type in enumerate(("other", "made"), message.seq - 1):
        returned.add(
            message._replace(seq=seq), GivenBack("503", delay_seconds=60, event_type=event_type), CONSUMER
        )
    [(remembered, _, _)] = returned.take("made")
    assert remembered == message._replace(payload=b"", headers={})


def test_a_message_that_is_delivered_too_soon_waits_on_under_its_new_reply_subject() -> None:
    returned = ReturnedMessages(CONSUMER, clock=lambda: 0.0)
    read_ahead = inbound_message(reply="")
    returned.add(
        read_ahead, GivenBack("503", delay_seconds=60, event_type="made", least_seconds=40), CONSUMER
    )
    assert returned.came_again(inbound_message(reply="$JS.ACK.x")) == 40
    [(waiting, _, delay_seconds)] = returned.take("made")
    assert (waiting.reply, delay_seconds) == ("$JS.ACK.x", 40)
