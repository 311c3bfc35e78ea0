"""NATS as its answers and errors are understood: malformed messages, refusals, streams and consumers."""

import asyncio
import tracemalloc
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import nats.aio.client
import nats.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.protocol import parser
from nats.protocol.parser import Parser

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.connection import ResilientClient
from sea_mq_worker.nats.errors import api_failed, is_refusal
from sea_mq_worker.nats.headers import header_problem
from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo

OVERRIDDEN = (
    *("_process_err", "_process_op_err", "_process_headers", "_build_message", "_process_connect_init"),
    *("_send_command", "_flush_pending", "_flusher", "_connect_command", "_process_pong"),
    *("_attempt_reconnect", "_setup_nkeys_connect"),
)


def test_this_nats_py_calls_what_is_overridden() -> None:
    assert [name for name in OVERRIDDEN if not hasattr(Client, name)] == []
    assert isinstance(Client()._ps, Parser)
    assert Client()._pongs == []
    assert {"_parse_header_lines", "parse_email"} <= set(Client._process_headers.__code__.co_names)
    assert {"_process_msg", "MSG_RE", "HMSG_RE"} <= set(Parser.parse.__code__.co_names)


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


# --- Errors.


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (429, 10167, BrokerUnavailableError),  # too many requests
        (503, 10008, BrokerUnavailableError),  # no leader
        (500, 10047, ContractError),  # too little storage
        (500, 10074, ContractError),  # more replicas than servers
        (404, 10059, ContractError),  # no such stream
    ],
)
def test_what_passes_is_an_outage_and_what_stays_a_broken_contract(
    code: int, err_code: int, kind: type[Exception]
) -> None:
    error = api_failed("STREAM.CREATE.ORDERS", {"code": code, "err_code": err_code, "description": "refused"})
    assert isinstance(error, kind)
    assert str(error) == f"STREAM.CREATE.ORDERS: refused ({code}/{err_code})"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("authorization violation", True),
        ("account authentication expired", True),
        ("authentication timeout", False),
        ("maximum account active connections exceeded", False),
        ('permissions violation for publish to "account.event.opened.v1"', False),
    ],
)
def test_only_an_error_about_the_worker_itself_is_a_refusal(text: str, refused: bool) -> None:
    assert is_refusal(nats.errors.Error(f"nats: {text}")) is refused


# --- Streams and consumers.

CREATED = "2026-11-01T00:00:00.123456789Z"
NEVER = "0001-01-01T00:00:00Z"
LATER = datetime(2026, 11, 2, tzinfo=UTC)


def stream(config: dict[str, Any] | None = None, **state: Any) -> StreamInfo:
    """Parse a stream's answer, which is empty but for ``state``."""
    held = {"messages": 0, "bytes": 0, "first_seq": 0, "first_ts": NEVER, "last_seq": 0, "last_ts": NEVER}
    answer = {"created": CREATED, "ts": "2026-11-02T00:00:00Z", "config": config or {}, "state": held | state}
    return StreamInfo.from_json("S", answer, local_time=LATER.timestamp() - 2.0)


def consumer(config: dict[str, Any], **given: Any) -> ConsumerInfo:
    """Parse the answer of a consumer that has delivered nothing."""
    nothing = {"consumer_seq": 0, "stream_seq": 0}
    counts = {"num_pending": 0, "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0}
    answer = {"name": "c", "created": CREATED, "delivered": nothing, "ack_floor": nothing, "config": config}
    return ConsumerInfo.from_json("S", answer | counts | given)


def test_an_empty_stream_begins_behind_its_last_message_and_tells_the_servers_clock() -> None:
    fresh, purged = stream(), stream(last_seq=5, first_seq=6, last_ts="2026-11-01T08:00:00Z")
    assert (fresh.first_seq, fresh.first_time) == (1, None)
    assert (purged.first_seq, purged.first_time) == (6, None)
    assert (fresh.now, fresh.clock_offset_seconds) == (LATER, 2.0)


@pytest.mark.parametrize(
    ("config", "volatile"),
    [({"storage": "file"}, False), ({"storage": "memory"}, True), ({"persist_mode": "async"}, True)],
)
def test_a_stream_that_acknowledges_before_it_stores_is_volatile(
    config: dict[str, Any], *, volatile: bool
) -> None:
    assert stream(config).volatile is volatile


@pytest.mark.parametrize(
    ("config", "wanted"), [({}, True), ({"filter_subject": "a.*"}, True), ({"filter_subjects": ["b"]}, False)]
)
def test_a_consumer_wants_what_a_filter_covers(config: dict[str, Any], *, wanted: bool) -> None:
    assert consumer(config).wants("a.b") is wanted


def test_the_first_backoff_takes_the_place_of_ack_wait() -> None:
    assert consumer({"ack_wait": 30_000_000_000}).ack_wait_seconds == 30.0
    assert consumer({"ack_wait": 30_000_000_000, "backoff": [1_000_000_000]}).ack_wait_seconds == 1.0


def test_a_pause_counts_while_it_lasts() -> None:
    paused = consumer({"pause_until": CREATED}, paused=True, pause_remaining=2_000_000_000)
    assert (paused.is_paused, paused.paused_seconds, paused.pause_until) == (True, 2.0, CREATED)
    assert consumer({}, pause_remaining=2_000_000_000).paused_seconds == 0.0


@pytest.mark.parametrize(
    ("config", "unfit"),
    [
        ({}, ""),
        ({"max_expires": 10**8}, ""),
        ({"max_expires": 10**8 - 1}, "max_expires is 99999999"),
        ({"ack_policy": "all"}, "ack_policy is all"),
        ({"deliver_subject": "x"}, "deliver_subject is x"),
        ({"headers_only": True}, "headers_only is True"),
        ({"priority_policy": "overflow", "priority_groups": ["g"]}, "priority_policy is overflow"),
    ],
)
def test_a_consumer_is_unfit_that_lets_no_pull_request_through_or_omits_something(
    config: dict[str, Any], unfit: str
) -> None:
    assert consumer({"ack_policy": "explicit"} | config).unfit == unfit
