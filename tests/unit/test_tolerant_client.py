"""Messages that are malformed on the wire, as the client reads them."""

import asyncio
import tracemalloc
from types import SimpleNamespace

import nats.aio.client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.protocol import parser
from nats.protocol.parser import Parser

from sea_mq_worker.nats.connection import ResilientClient
from sea_mq_worker.nats.headers import header_problem


def test_this_nats_py_calls_what_is_overridden() -> None:
    assert hasattr(Client, "_process_err")
    assert hasattr(Client, "_process_op_err")
    assert hasattr(Client, "_process_headers")
    assert hasattr(Client, "_build_message")
    assert "_process_msg" in Parser.parse.__code__.co_names
    assert hasattr(Client, "_send_command")
    assert hasattr(Client, "_flush_pending")
    assert hasattr(Client, "_flusher")
    assert hasattr(Client, "_connect_command")
    assert hasattr(Client, "_process_pong")
    assert isinstance(Client()._ps, Parser)
    assert Client()._pongs == []
    assert {"_parse_header_lines", "parse_email"} <= set(Client._process_headers.__code__.co_names)
    assert {"MSG_RE", "HMSG_RE"} <= set(Parser.parse.__code__.co_names)


async def test_a_subject_may_hold_white_space_that_is_no_blank() -> None:
    class Reader(ResilientClient):
        async def _process_msg(self, *message: object) -> None:
            read.append(message)

    read: list[tuple[object, ...]] = []
    wire = b"MSG a\x0bb 1 r 2\r\n{}\r\nHMSG c\x0c 2 12 14\r\nNATS/1.0\r\n\r\n{}\r\nMSG d 3 0\r\n\r\n"
    await Reader()._ps.parse(wire)
    assert read == [
        (1, b"a\x0bb", b"r", b"{}", None),
        (2, b"c\x0c", b"", b"{}", b"NATS/1.0\r\n\r\n"),
        (3, b"d", b"", b"", None),
    ]


async def test_nats_py_of_the_rest_of_the_process_stays_as_it_is() -> None:
    assert parser.MSG_RE.match(b"MSG a\x0bb 1 2\r\n"), "its white space ends a word"
    stock = Client._process_headers
    assert stock.__globals__ is vars(nats.aio.client)


async def test_an_answer_to_a_ping_that_nobody_awaits_ends_nothing() -> None:
    client = ResilientClient()
    given_up, awaited = (asyncio.get_running_loop().create_future() for _ in range(2))
    given_up.cancel()
    client._pongs += [given_up, awaited]
    await client._ps.parse(b"PONG\r\nPONG\r\n")
    assert awaited.result() is True


async def test_header_values_are_texts_also_where_fast_mail_parser_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def parse_email(_block: bytes) -> SimpleNamespace:
        return SimpleNamespace(headers={"Nats-Msg-Id": ["a"]})

    monkeypatch.setattr(nats.aio.client, "parse_email", parse_email)
    block = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"
    assert await Client()._process_headers(block) == {"Nats-Msg-Id": ["a"]}
    assert await ResilientClient()._process_headers(block) == {"Nats-Msg-Id": "a"}


@given(lines=st.lists(st.one_of(st.binary(max_size=20), st.from_regex(rb"[a-c \x1c]+: ?[a-c ]*"))))
def test_headers_are_read_as_nats_py_reads_them(lines: list[bytes]) -> None:
    block = b"\r\n".join(lines)
    stock = {name: value for name, value in Client._parse_header_lines(block).items() if name}
    assert ResilientClient._parse_header_lines(block) == stock


def test_long_names_of_headers_stay_in_no_cache() -> None:
    """Those of any publisher, each other than the ones before."""
    tracemalloc.start()
    for number in range(300):
        headers = ResilientClient._parse_header_lines(b"x" * 60_000 + b"%d: 1" % number)
        assert list(map(header_problem, headers, headers.values())) == [""]
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 2**20
