"""The subject grammar ``{context}.event.{name}.v{n}``."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sea_mq_worker.errors import InvalidEventError, InvalidMessageError
from sea_mq_worker.nats.subjects import (
    SUBJECT_BYTES_MAX,
    EventSubject,
    event_subject,
    is_context,
    parse_subject,
)


@pytest.mark.clause("event-model-05", "EventSubject")
@pytest.mark.parametrize(
    ("event_type", "version", "expected"),
    [
        ("vibe_created", 1, "sea.event.vibe_created.v1"),
        ("order.line.added", 12, "sea.event.order.line.added.v12"),
        ("OrderCreated", 1, "sea.event.OrderCreated.v1"),
        ("größe", 1, "sea.event.größe.v1"),
        ("v2", 3, "sea.event.v2.v3"),
        ("a$b", 1, "sea.event.a$b.v1"),
        ("n", 2147483647, "sea.event.n.v2147483647"),
    ],
)
def test_a_subject_is_built_and_taken_apart_again(event_type: str, version: int, expected: str) -> None:
    assert event_subject("sea", event_type, version) == expected
    assert parse_subject(expected) == EventSubject(expected, "sea", event_type, version)


@pytest.mark.clause("EventSubject")
@pytest.mark.fault("S07")
@pytest.mark.parametrize(
    "event_type",
    [
        *("", " ", "a b", "a\tb", "a\u00a0b", "a\u2028b", "a\u200bb"),
        *("a\r\nPUB x 0", "a\0", "a\x7f", "\ud800", "a\ufffdb"),
        *("*", "a.*", "a.*.b", "a*b", ">", "a.>"),
        *(".a", "a.", "a..b", "."),
    ],
)
def test_a_type_that_makes_no_subject_is_an_invalid_row(event_type: str) -> None:
    """P23: otherwise a wildcard would be stored literally and a line break would speak to the server."""
    with pytest.raises(InvalidEventError, match="INVALID_OUTBOX: event_type"):
        event_subject("sea", event_type, 1)


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_below_one_is_an_invalid_row(version: int) -> None:
    with pytest.raises(InvalidEventError, match="INVALID_OUTBOX: event_version"):
        event_subject("sea", "made", version)


def test_the_length_is_bounded_in_bytes() -> None:
    frame = len("sea.event..v1")
    longest = "ß" * ((SUBJECT_BYTES_MAX - frame) // 2)

    assert len(event_subject("sea", longest, 1).encode()) <= SUBJECT_BYTES_MAX
    with pytest.raises(InvalidEventError, match="longer"):
        event_subject("sea", longest + "ßß", 1)


@pytest.mark.parametrize(
    "subject",
    [
        *("", "sea", "sea.event", "sea.event.v1", "sea.event.made", "sea.event.made.1", "sea.event.made.v"),
        *("sea.event.made.v0", "sea.event.made.v01", "sea.event.made.v-1", "sea.event.made.v1.5"),
        *("sea.event.made.v1 ", "sea.event.made.v\u0661", "sea.event.made.v99999999999", "sea.event.made.V1"),
        *("sea.dlq.made.v1", "sea.Event.made.v1", "sea.event..v1", "sea.event.a..b.v1", "sea.event.*.v1"),
        *("sea.event.a\ufffdb.v1", "\ufffd.event.a.v1"),
    ],
)
def test_a_subject_outside_the_grammar_is_reported(subject: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        parse_subject(subject)
    assert caught.value.reason == "BAD_SUBJECT"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        *((text, True) for text in ("sea", "sea-2", "s_a", "9lives")),
        *((text, False) for text in ("", "Sea", "sea.event", "-sea", "sea*", "sea\n", "größe")),
    ],
)
def test_a_context_is_one_lower_case_token(text: str, good: bool) -> None:
    assert is_context(text) is good


@pytest.mark.clause("EventSubject")
@example(event_type="a\ufffdb", version=1)
@given(event_type=st.text(max_size=60), version=st.integers(-2, 10**10))
def test_whatever_is_built_is_taken_apart_to_the_same(event_type: str, version: int) -> None:
    try:
        subject = event_subject("sea", event_type, version)
    except InvalidEventError:
        return
    if version < 10**10:
        assert parse_subject(subject) == EventSubject(subject, "sea", event_type, version)
    assert not any(c.isspace() or c in "*>" for c in subject)
