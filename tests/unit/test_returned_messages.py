"""What is remembered of messages that were given back."""

from sea_mq_worker.application.inbox.returned_messages import ReturnedMessages
from sea_mq_worker.domain.outcomes import GivenBack
from tests.support.builders import inbound_message


def test_thousands_may_wait_for_their_bodies_are_not_kept() -> None:
    returned = ReturnedMessages(clock=lambda: 0.0)
    message = inbound_message(reply="$JS.ACK.x", payload=b"x" * 1024)
    returned.add(message, GivenBack(error="503", delay_seconds=60, event_type="made"))
    [(remembered, _, _)] = returned.take("made")
    assert remembered == message._replace(payload=b"", headers={})
