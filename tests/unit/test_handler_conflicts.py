"""Workers that cannot share an inbox."""

import pytest

from sea_mq_worker.inbox.sharing import HandledDurable, conflicts, overlap


def durable(durable: str, handler: str, subject: str = ">", stream: str = "UP") -> HandledDurable:
    return HandledDurable(stream=stream, durable=durable, handler=handler, subjects=(subject,))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*.c", "*.b.*", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "b.>", False),
        (">", "a", True),
        ("a.b", "a.b.c", False),
        ("*.b", "a.c", False),
    ],
)
def test_patterns_overlap_where_some_subject_matches_both(one: str, other: str, *, expected: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is expected


@pytest.mark.parametrize(
    "other",
    [
        durable("b", "http://one"),
        durable("a", "http://two"),
        durable("b", "http://two", "up.event.other.>"),
        durable("b", "http://two", stream="OTHER"),
    ],
    ids=["the same handler", "the same durable", "other subjects", "another stream"],
)
def test_workers_share_an_inbox_unless_two_handlers_would_get_a_part_each(other: HandledDurable) -> None:
    own = durable("a", "http://one", "up.event.made.v1")
    assert list(conflicts([own], [other])) == []


def test_different_durables_for_different_handlers_clash_where_their_subjects_overlap() -> None:
    own, other = durable("a", "http://one", "up.event.made.*"), durable("b", "http://two", "up.>")
    assert list(conflicts([own], [other])) == [(own, other)]


def test_a_handler_is_changed_under_several_durables_while_the_old_workers_still_run() -> None:
    old = [durable("a", "http://old"), durable("b", "http://old")]
    new = [durable("a", "http://new"), durable("b", "http://new")]
    assert list(conflicts(new, old)) == []
