"""One of two workers is sick while its sibling is well: the sibling publishes the events."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.support.sick_worker import KINDS, seconds_until, sick_and_well
from tests.support.site import Site

RecordProperty: TypeAlias = Callable[[str, object], None]
"""pytest's own: ``--junitxml`` writes the figures."""


@pytest.mark.long
@pytest.mark.parametrize("key", [None, "k"], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["broker", "database"])
async def test_a_sibling_whose_links_are_well_publishes_the_events(
    shared: Site, to: str, kind: str, key: str | None, record_property: RecordProperty
) -> None:
    link = {"broker": shared.to_broker, "database": shared.to_database}[to]
    async with sick_and_well(shared):
        await shared.commit(5, ordering_key=key)
        await shared.published()
        KINDS[kind](link)
        await shared.commit(40, ordering_key=key)
        seconds = await seconds_until(shared.published)
        record_property("seconds", round(seconds, 1))
        link.heal()
    await shared.audit()
