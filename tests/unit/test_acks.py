"""The meaning of the stream's answers: only a message's own fault may end it."""

import json

import pytest

from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.message import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown
from sea_mq_worker.outbox.acks import ack_reader

STREAM = "SEA_EVENTS"


def read(data: bytes, status: str = "") -> PublishOutcome:
    return ack_reader(STREAM)(data, status)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"stream":"SEA_EVENTS","seq":7}', Stored(STREAM, 7)),
        (b'{"stream":"SEA_EVENTS", "seq":7}', Stored(STREAM, 7)),
        (b'{"stream":"SEA_EVENTS","seq":7,"duplicate":true}', Stored(STREAM, 7, duplicate=True)),
        (b'{"stream":"SEA_EVENTS","seq":7,"duplicate": true}', Stored(STREAM, 7, duplicate=True)),
        (b'{"stream":"SEA_EVENTS","domain":"hub","seq":9223372036854775807}', Stored(STREAM, 2**63 - 1)),
        (b'{"stream":"SEA_EVENTS","seq":9223372036854775807}', Stored(STREAM, 2**63 - 1)),
        (b'{"seq":7,"stream":"SEA_EVENTS","duplicate":false}', Stored(STREAM, 7)),
    ],
)
def test_an_acknowledgement_in_any_form_is_read(data: bytes, expected: Stored) -> None:
    assert read(data) == expected


def test_where_a_domain_is_named_only_its_acknowledgement_counts() -> None:
    def read_of_hub(data: bytes) -> PublishOutcome:
        return ack_reader(STREAM, "hub")(data, "")

    assert read_of_hub(b'{"stream":"SEA_EVENTS","domain":"hub","seq":7}') == Stored(STREAM, 7)
    assert read_of_hub(b'{"seq":7,"stream":"SEA_EVENTS","domain":"hub"}') == Stored(STREAM, 7)
    for other in (b'{"stream":"SEA_EVENTS", "domain":"edge","seq":7}', b'{"stream":"SEA_EVENTS","seq":7}'):
        outcome = read_of_hub(other)
        assert isinstance(outcome, Unknown)
        assert "instead of 'hub'" in outcome.reason


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"+ACK", b"null", b"[]", b"{}", b"\xff\xfe", b'{"stream":"SEA_EVENTS"}'),
        *(
            b'{"stream":"SEA_EVENTS","seq":%s}' % seq
            for seq in (b"0", b"-1", b'"7"', b"true", b"7.0", b"9223372036854775808", b"")
        ),
        b'{"stream":"SEA_EVENTS","seq":7',
        b'{"stream":"sea_events","seq":7}',
        b'{"stream":"OTHER","seq":7}',
        b'{"seq":7}',
        b'{"stream":"SEA_EVENTS","seq":7,"error":"text"}',
    ],
)
def test_anything_else_confirms_nothing(data: bytes) -> None:
    """S07, S14: replies are untrusted."""
    assert isinstance(read(data), Unknown)


def test_the_error_of_a_foreign_stream_names_the_remedy() -> None:
    outcome = read(b'{"stream":"OTHER","seq":7}')

    assert isinstance(outcome, Unknown)
    assert "'OTHER' instead of 'SEA_EVENTS'" in outcome.reason
    assert "streams check" in outcome.reason


def test_no_responders_may_only_be_a_leader_that_is_away() -> None:
    outcome = read(b"", "503")

    assert isinstance(outcome, Unknown)
    assert "no stream" in outcome.reason


VERDICTS = (
    (Rejected, 400, (10054, 10097, 10165, 10166, 10188, 10189, 10190)),
    (FailedTransiently, 400, (10070, 10071, 10164)),
    (Unknown, 400, (10002, 10060, 10109, 10174, 10201, 10205, 10208, 99999)),
    (Unknown, 409, (10158,)),
    (Unknown, 429, (10167, 10210)),
    (Unknown, 500, (10047, 10118)),
    (Unknown, 503, (10008, 10023, 10039, 10077, 10163)),
)


@pytest.mark.parametrize(
    ("code", "status", "kind"), [(code, status, kind) for kind, status, codes in VERDICTS for code in codes]
)
def test_an_error_is_judged_by_whose_fault_it_is(code: int, status: int, kind: type) -> None:
    """G3: what the infrastructure does wrong, and what nobody knows, spends no row's life."""
    error = {"code": status, "err_code": code, "description": "why"}

    outcome = read(json.dumps({"error": error, "stream": STREAM, "seq": 0}).encode())

    assert type(outcome) is kind
    assert outcome.reason.startswith(f"why ({status}/{code})")


@pytest.mark.parametrize("code", ['"x"', "true", "null", "[]", "10054.0"])
def test_an_error_without_numbers_is_unknown(code: str) -> None:
    error = b'{"error":{"err_code":%s}}' % code.encode()

    assert read(error) == Unknown("refused (0/0)", answered=True, refused=True)


@pytest.mark.parametrize("reported", ['"false"', "1", "[0]", "null"])
def test_only_true_makes_an_acknowledgement_a_duplicates(reported: str) -> None:
    answer = b'{"stream":"SEA_EVENTS","seq":7,"duplicate":%s}' % reported.encode()

    assert read(answer) == Stored(STREAM, 7)


def test_a_refusal_of_the_api_is_read_whatever_its_numbers_are() -> None:
    refused = ApiRefusedError("STREAM.INFO.SEA_EVENTS", {"code": "x", "err_code": True})

    assert (refused.code, refused.err_code) == (0, 0)
