"""The deadline helper of the tests themselves."""

import pytest

from tests.support.waiting import eventually


async def test_returns_the_first_truthy_answer_of_a_plain_or_async_probe() -> None:
    answers = iter(["", "", "done"])

    async def probe() -> str:
        return next(answers)

    assert await eventually(probe) == "done"
    assert await eventually(lambda: 7) == 7


async def test_fails_at_the_deadline_with_what_was_expected_and_seen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.05 s: three rows \(last answer: \[\]\)"):
        await eventually(list, within=0.05, what="three rows")


async def test_passes_on_what_the_probe_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 / 0)
