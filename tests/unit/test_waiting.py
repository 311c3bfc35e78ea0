"""The deadline helper of the tests themselves."""

import pytest

from tests.support.waiting import eventually


async def test_fails_at_the_deadline_with_what_was_expected_and_seen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.05 s: three rows \(last answer: \[\]\)"):
        await eventually(list, within=0.05, what="three rows")
