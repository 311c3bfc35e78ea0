"""The report's page stands alone, is safe for any names of events, and fits a wide and a narrow screen."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.report import Bin, Group, LatencyFigures
from sea_mq_worker.pipeline.jobs.report_page import (
    duration,
    findings,
    is_replaceable,
    page,
    share,
    size,
    write_page,
)
from tests.support.browser import PROGRAM, chromium
from tests.support.reports import HOSTILE, SINCE, busy_report, empty_report, hostile_report


class Elements(HTMLParser):
    """All start tags with their attributes, and the text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] not in {"script", "style"}:
            self.texts.append(data)


@pytest.fixture(scope="module")
def hostile() -> str:
    return page(hostile_report(), title=f"Title {HOSTILE}")


def test_the_page_loads_and_runs_nothing_and_has_each_part(hostile: str) -> None:
    elements = Elements(hostile)
    loaded = [
        attributes[name]
        for tag, attributes in elements.found
        for name in ("src", "href", "xlink:href", "action", "data", "srcset")
        if attributes.get(name) and tag not in {"a", "use"}
    ]
    assert loaded == ["data:,"]
    references = [a["xlink:href"] or "" for tag, a in elements.found if tag == "use"]
    assert references
    assert all(reference.startswith("#") for reference in references)
    policy = next(a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src")
    assert "script-src" not in policy
    assert re.search(r"url\((?!#)|@import", hostile) is None
    ids = [attributes["id"] for _, attributes in elements.found if attributes.get("id")]
    assert len(set(ids)) == len(ids)
    assert {"verdict", "throughput", "latency", "retries", "dead", "largest", "backlog"} <= set(ids)
    plots = [tag for tag, attributes in elements.found if attributes.get("role") == "img"]
    assert len(plots) == [tag for tag, _ in elements.found].count("details") == 6
    assert hostile.index('id="verdict"') < hostile.index('id="throughput"')
    assert "20 or more" in "".join(elements.texts)


def test_text_from_events_is_shown_and_is_never_markup(hostile: str) -> None:
    elements = Elements(hostile)
    assert "script" not in [tag for tag, _ in elements.found]
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    links = [attributes["href"] or "" for tag, attributes in elements.found if tag == "a"]
    assert links
    assert all(link.startswith("#") for link in links)
    shown = HOSTILE.replace("\u202e", "\\u202e")
    assert elements.texts.count(shown) >= 5
    assert "\u202e" not in hostile


def test_an_empty_period_has_no_card_and_names_what_is_absent() -> None:
    text = page(empty_report())
    assert "All is well" in text
    assert "<svg" not in text
    assert "<table>" not in text
    assert "Throughput, Latency, Retries, Dead events and dead letters, Largest keys and types" in text


def test_durations_of_zero_and_of_centuries_and_more_reasons_than_colours_are_drawn() -> None:
    report = busy_report()
    wide = [replace(each, p50=0.0, longest=3e10) for each in report.latencies]
    many = [Group(f"reason {n}", "", n, at=SINCE) for n in range(1, 11)]
    lone = [Bin(at=SINCE, written=1)]
    elements = Elements(
        page(replace(report, latencies=wide, dead_letter_bins=many, bins=lone, bin_seconds=15))
    )
    assert {"0 ms", "347,222.2 d", "others", "reason 10"} - set(elements.texts) <= {"347,222.2 d"}
    assert "reason 5" not in elements.texts
    text = page(replace(report, keys=[], totals=replace(report.totals, keys=70_000)))
    assert "70,000 in all, of which none stands out." in text


def test_the_summary_lists_problems_the_worst_first() -> None:
    found = findings(hostile_report())
    assert [each.level for each in found] == ["bad", "bad", "bad", "warn", "warn", "warn", "warn"]
    assert found[0].text.startswith("3 events of 27 written will not be published: DEAD")
    assert found[2].text == "3 events waited to be published, the oldest for 1.0 d."
    empty = empty_report()
    totals = replace(empty.totals, written=100, published=100, outbox_retried=5)
    latencies = [LatencyFigures("outbox", None, 100, 1.0, 2.0, 60.0, 99.0)]
    assert [each.level for each in findings(replace(empty, totals=totals, latencies=latencies))] == ["good"]


def test_numbers_have_units() -> None:
    assert [duration(s) for s in (0.0004, 0.25, 3.25, 60, 5400, 200_000)] == [
        "0.4 ms", "250 ms", "3.2 s", "1 min", "1.5 h", "2.3 d",
    ]  # fmt: skip
    assert [size(n) for n in (999, 1500, 2_000_000)] == ["999 B", "1.5 kB", "2 MB"]
    assert [share(0, 5), share(1, 2000), share(1, 3)] == ["0 %", "< 0.1 %", "33.3 %"]


def test_only_an_earlier_report_is_replaced(tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text("<!doctype html><title>mine</title>")
    assert not is_replaceable(other)
    assert not is_replaceable(tmp_path)
    place = tmp_path / "report.html"
    for _ in range(2):
        assert is_replaceable(place)
        write_page(page(empty_report()), place)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PipelineError, match="cannot be written"):
        write_page("", tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "other.html", "report.html"}


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH")
async def test_a_browser_shows_a_full_page_below_300_kilobytes_without_scrolling_sideways(
    tmp_path: Path,
) -> None:
    place = tmp_path / "report.html"
    place.write_text(page(busy_report()))
    assert place.stat().st_size < 300_000
    async with chromium() as browser:
        shown = await browser.page(place.as_uri(), width=1280, height=900)
        await shown.until("document.readyState == 'complete' && document.querySelector('footer') != null")
        for width in (1280, 390):
            await shown.resize(width, 900)
            assert await shown.evaluate("document.documentElement.scrollWidth") == width
        assert await shown.evaluate("document.querySelectorAll('.plot svg').length") == 7
        assert shown.troubles == []
