"""Which workers cannot share an inbox."""

import pytest

from sea_mq_worker.domain.consumption import Consumption, clashes, overlap


def consumption(durable: str, handler: str, subject: str = ">", stream: str = "UP") -> Consumption:
    return Consumption(stream=stream, durable=durable, handler=handler, subjects=(subject,))


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
        consumption("b", "http://one"),
        consumption("a", "http://two"),
        consumption("b", "http://two", "up.event.other.>"),
        consumption("b", "http://two", stream="OTHER"),
    ],
    ids=["the same handler", "the same durable", "other subjects", "another stream"],
)
def test_workers_share_an_inbox_unless_two_handlers_would_get_a_part_each(other: Consumption) -> None:
    own = consumption("a", "http://one", "up.event.made.v1")
    assert list(clashes([own], [other])) == []


def test_different_durables_for_different_handlers_clash_where_their_subjects_overlap() -> None:
    own, other = consumption("a", "http://one", "up.event.made.*"), consumption("b", "http://two", "up.>")
    assert list(clashes([own], [other])) == [(own, other)]


def test_a_handler_is_changed_under_several_durables_while_the_old_workers_still_run() -> None:
    old = [consumption("a", "http://old"), consumption("b", "http://old")]
    new = [consumption("a", "http://new"), consumption("b", "http://new")]
    assert list(clashes(new, old)) == []
