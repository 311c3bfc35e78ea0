"""Messages that are malformed on the wire, as the client reads them."""

from nats.aio.client import Client

from sea_mq_worker.adapters.nats.client import TolerantClient


def test_this_nats_py_calls_what_is_overridden() -> None:
    assert hasattr(Client, "_process_headers")
    assert hasattr(Client, "_build_message")


async def test_header_blocks_that_cannot_be_read_are_no_headers() -> None:
    client = TolerantClient()
    assert await client._process_headers(b"NATS/1.0") == {}
    assert await client._process_headers(b"NATS/1.0 \xff\xff\xff\r\n\r\n") == {}
    assert await client._process_headers(b"NATS/1.0\r\na: b\r\n\r\n") == {"a": "b"}


def test_bytes_that_are_no_utf8_are_replaced_in_a_subject() -> None:
    message = TolerantClient()._build_message(1, b"a.\xff.b", b"", b"", None)
    assert message.subject == "a.\ufffd.b"
