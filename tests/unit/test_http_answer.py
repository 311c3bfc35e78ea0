"""An answer is read the same however its bytes are cut, within bounds, and never beyond its end."""

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sea_mq_worker.inbox.http_client import Response, ResponseParser

BODY_MAX = 1000
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def read(*pieces: bytes, eof: bool = False) -> ResponseParser:
    reader = ResponseParser(BODY_MAX)
    for piece in pieces:
        reader.feed(piece)
    if eof:
        reader.feed_eof()
    return reader


def whole(reader: ResponseParser) -> Response:
    assert reader.answer is not None
    return reader.answer


WHOLE_ANSWERS = {
    "length": OK,
    "chunks": CHUNKED + b"1\r\no\r\n1;extension=1\r\nk\r\n0\r\ntrailer: 1\r\n\r\n",
    "interim ones before": b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nlink: x\r\n\r\n" + OK,
    "HTTP/1.0 kept alive": b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("data", WHOLE_ANSWERS.values(), ids=WHOLE_ANSWERS.keys())
def test_an_answer_is_read_however_its_bytes_are_cut(data: bytes) -> None:
    for cut in range(len(data)):
        reader = read(data[:cut], data[cut:])
        assert (whole(reader).status, whole(reader).body, reader.reusable) == (200, b"ok", True)
    by_bytes = read(*(data[i : i + 1] for i in range(len(data))))
    assert whole(by_bytes).body == b"ok"
    assert not {name for name, _ in whole(by_bytes).headers} & {b"trailer", b"link"}


def test_a_connection_is_read_on_after_each_answer() -> None:
    reader = ResponseParser(BODY_MAX)
    for status in (200, 422, 204, 500):
        reader.begin()
        reader.feed(b"HTTP/1.1 %d X\r\n%s\r\n" % (status, b"" if status == 204 else b"content-length: 0\r\n"))
        assert (whole(reader).status, reader.reusable) == (status, True)


@pytest.mark.parametrize("second", [b"H", b"?", OK, b"HTTP/1.1 100 C\r\n\r\n", b"ok"])
@pytest.mark.parametrize("first", [OK, CHUNKED + b"0\r\n\r\n", b"HTTP/1.1 204 X\r\n\r\n"])
def test_bytes_behind_an_answer_change_nothing_and_end_the_connection(first: bytes, second: bytes) -> None:
    reader = read(first + second.replace(b"200", b"500"))
    assert whole(reader).status in {200, 204}
    assert not reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + OK,
        b"HTTP/1.1 101 X\r\n\r\n",
    ],
)
def test_an_answer_may_be_the_last_one(data: bytes) -> None:
    reader = read(data)
    assert reader.answer is not None
    assert not reader.reusable


def test_an_answer_may_end_with_its_connection() -> None:
    reader = read(b"HTTP/1.0 200 OK\r\n\r\no", b"k", eof=True)
    assert whole(reader).body == b"ok"
    assert not reader.reusable


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 20", OK[:-1], CHUNKED + b"2\r\nok\r\n", b"HTTP/1.1 100 C\r\n\r\n", OK[:17]]
)
def test_an_end_too_early_makes_no_answer(data: bytes) -> None:
    assert read(data, eof=True).answer is None


ENDLESS_HEADS = {
    "one header": [b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000],
    "headers": [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 2_000, b"\r\n"],
    "headers of interim answers": [b"HTTP/1.1 103 E\r\n" + b"x: y\r\n" * 100 + b"\r\n"] * 20,
    "reason": [b"HTTP/1.1 200 " + b"y" * 70_000],
}


@pytest.mark.parametrize("pieces", ENDLESS_HEADS.values(), ids=ENDLESS_HEADS.keys())
def test_a_head_has_bounds(pieces: list[bytes]) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        read(*pieces)


ENDLESS_BODIES = {
    "chunks": [CHUNKED, *[b"64\r\n" + b"." * 0x64 + b"\r\n"] * 20],
    "length": [b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", *[b"." * 100] * 20],
    "chunk extension": [CHUNKED, b"1;" + b"x" * 70_000],
    "trailer": [CHUNKED, b"0\r\nx: " + b"y" * 70_000],
}


@pytest.mark.parametrize("pieces", ENDLESS_BODIES.values(), ids=ENDLESS_BODIES.keys())
def test_an_endless_body_is_an_answer_once_it_is_too_long(pieces: list[bytes]) -> None:
    reader = read(*pieces)
    assert whole(reader).status == 200
    assert len(whole(reader).body) <= BODY_MAX + 100
    assert not reader.reusable


@given(pieces=st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([OK, CHUNKED, b"2\r\n", b"\r\n"]))))
def test_whatever_comes_is_an_answer_or_broken(pieces: list[bytes]) -> None:
    reader = ResponseParser(BODY_MAX)
    try:
        for piece in pieces:
            reader.feed(piece)
    except httpx2.RemoteProtocolError:
        assert reader.answer is None
    reader.feed_eof()
