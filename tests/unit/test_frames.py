import pytest
from nats.protocol.command import hpub_cmd

from sea_mq_worker.adapters.nats.publish import hpub
from sea_mq_worker.domain.encoding import EncodedMessage, encode
from sea_mq_worker.domain.messages import OutboundMessage


@pytest.mark.parametrize("reply", ["", "_INBOX.a.1"])
def test_a_frame_is_what_nats_py_would_have_sent(reply: str) -> None:
    headers = {"Nats-Msg-Id": "a", "ce-subject": "order/ö"}
    message = OutboundMessage(id="a", subject="sea.event.x.v1", payload=b'{"n": 1.00}', headers=headers)
    ready = encode(message, 1 << 20)
    assert isinstance(ready, EncodedMessage)
    encoded = b"NATS/1.0\r\nNats-Msg-Id: a\r\nce-subject: order/\xc3\xb6\r\n\r\n"
    assert hpub.frame(ready, reply) == hpub_cmd(message.subject, reply, encoded, message.payload)
