"""The report's page stands alone, is safe for any names of events, and fits a wide and a narrow screen."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.report.findings import findings
from sea_mq_worker.pipeline.jobs.report.formatting import duration, share, size, step
from sea_mq_worker.pipeline.jobs.report.model import Bin, LatencyFigures, Shares, StreamBin
from sea_mq_worker.pipeline.jobs.report.page import is_replaceable, page, write_page
from sea_mq_worker.pipeline.jobs.report.timelines import Timelines
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


def test_the_page_loads_and_runs_nothing(hostile: str) -> None:
    elements = Elements(hostile)
    loaded = [
        attributes[name]
        for tag, attributes in elements.found
        for name in ("src", "href", "action", "data", "srcset")
        if attributes.get(name) and tag != "a"
    ]
    assert loaded == ["data:,"]
    policy = next(a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src")
    assert "script-src" not in policy
    assert re.search(r"url\(|@import", hostile.split("</style>", maxsplit=1)[0]) is None


def test_every_part_is_there_with_a_table_behind_each_plot(hostile: str) -> None:
    elements = Elements(hostile)
    ids = [attributes["id"] for _, attributes in elements.found if attributes.get("id")]
    assert len(set(ids)) == len(ids)
    assert {"verdict", "throughput", "latency", "retries", "dead", "largest", "backlog"} <= set(ids)
    plots = [a for _, a in elements.found if a.get("class") == "plot"]
    assert len(plots) == [tag for tag, _ in elements.found].count("details") == 6
    assert all(plot["aria-label"] for plot in plots)
    assert hostile.index('id="verdict"') < hostile.index('id="throughput"')
    assert elements.texts.count("20 or more") == 1


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
    assert 'class="plot"' not in text
    assert "<table>" not in text
    assert "Throughput, Latency, Retries, Dead events and dead letters, Largest keys and types" in text


def test_a_page_with_a_value_in_every_bin_is_below_300_kilobytes() -> None:
    assert len(page(busy_report()).encode()) < 300_000


def test_a_plot_is_at_most_twelve_times_as_wide_as_its_only_bin() -> None:
    report = busy_report()
    bins = [each if n == 100 else Bin(at=each.at) for n, each in enumerate(report.bins)]
    lone = replace(report, bins=bins, dead_letter_bins=[], stream_bins=[])
    outbox = Timelines(lone).bins("Outbox", written="written", published="published")
    assert outbox is not None
    assert [re.findall(r"H(\d+)", path) for path in outbox.paths()] == [["83"], ["83"]]
    assert len([*outbox.rows()]) == 1


def test_a_line_without_a_count_draws_nothing_and_keeps_its_place() -> None:
    report = busy_report()
    bins = [replace(each, written=0, published=0 if n == 9 else 7) for n, each in enumerate(report.bins)]
    outbox = Timelines(replace(report, bins=bins)).bins("Outbox", written="written", published="published")
    assert outbox is not None
    assert [path.count("M") for path in outbox.paths()] == [0, 2]


def test_keys_with_as_many_events_as_others_are_not_listed() -> None:
    text = page(replace(busy_report(), keys=Shares(largest=[], distinct=70_000)))
    assert "70,000 in all, of which none stands out." in text


@pytest.mark.parametrize(
    ("values", "labels"),
    [((0.159, 0.229), ["100 ms", "1 s"]), ((0.0, 0.0), ["1 ms", "10 ms"]), ((2.0, 4000.0), ["1 s", "10 h"])],
)
def test_a_plot_of_durations_has_lines_above_and_below_all_values(
    values: tuple[float, float], labels: list[str]
) -> None:
    report = hostile_report()
    close = [
        replace(each, p50=values[0], p95=values[1], p99=values[1], longest=values[1])
        for each in report.latencies
    ]
    timeline = Timelines(replace(report, latencies=close)).latency("Latency", "outbox")
    assert timeline is not None
    levels = timeline.levels()
    assert [levels[0][1], levels[-1][1]] == labels
    assert [levels[0][0], levels[-1][0]] == [100, 0]
    assert all(timeline.paths())


def test_labels_of_a_plot_stay_apart_from_a_millisecond_to_a_thousand_years() -> None:
    report = hostile_report()
    wide = [replace(each, p50=0.001, longest=3e10) for each in report.latencies]
    timeline = Timelines(replace(report, latencies=wide)).latency("Latency", "inbox")
    assert timeline is not None
    depths = [depth for depth, _ in timeline.levels()]
    assert min(lower - upper for lower, upper in pairwise(depths)) > 8


def test_each_line_of_a_plot_has_a_colour_of_its_own() -> None:
    report = busy_report()
    bins = [StreamBin(at=SINCE, context=f"context {n}", count=n) for n in range(1, 11)]
    lines = {}
    for count in (6, 7):
        timeline = Timelines(report).groups("", "messages", bins[-count:], "context")
        assert timeline is not None
        lines[count] = [line.name for line in timeline.lines]
    assert lines[6] == [f"context {n}" for n in range(5, 11)]
    assert lines[7] == ["others", *(f"context {n}" for n in range(6, 11))]
    seconds = replace(report, bin_seconds=15, stream_bins=bins)
    minutes = Timelines(seconds).groups("", "messages", bins, "context")
    assert minutes is not None
    assert (minutes.unit, minutes.step) == ("messages per minute", 60)
    assert minutes.span[1] == busy_report().until


def test_the_summary_lists_problems_the_worst_first() -> None:
    found = findings(hostile_report())
    assert [each.level for each in found] == ["bad", "bad", "bad", "warn", "warn", "warn", "warn"]
    assert found[0].text.startswith("3 events of 27 written will not be published: DEAD")
    assert found[2].text == "3 events waited to be published, the oldest for 1.0 d."


def test_a_few_retries_and_a_minute_are_no_problem() -> None:
    report = empty_report()
    totals = replace(report.totals, written=100, published=100, outbox_retried=5)
    latencies = [LatencyFigures("outbox", None, 100, 1.0, 2.0, 60.0, 99.0)]
    assert [each.level for each in findings(replace(report, totals=totals, latencies=latencies))] == ["good"]


def test_numbers_have_units() -> None:
    assert [duration(s) for s in (0.0004, 0.25, 3.25, 60, 5400, 200_000)] == [
        "0.4 ms", "250 ms", "3.2 s", "1 min", "1.5 h", "2.3 d",
    ]  # fmt: skip
    assert [size(n) for n in (999, 1500, 2_000_000)] == ["999 B", "1.5 kB", "2 MB"]
    assert [share(0, 5), share(1, 2000), share(1, 3)] == ["0 %", "< 0.1 %", "33 %"]
    assert [step(n) for n in (1, 300, 3600, 604_800)] == ["second", "5 minutes", "hour", "7 days"]


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
async def test_a_browser_shows_the_page_without_scrolling_sideways_and_logs_nothing(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text(page(busy_report()))
    async with chromium() as browser:
        shown = await browser.page(place.as_uri(), width=1280, height=900)
        await shown.until("document.readyState == 'complete' && document.querySelector('footer') != null")
        for width in (1280, 390):
            await shown.resize(width, 900)
            assert await shown.evaluate("document.documentElement.scrollWidth") == width
        assert await shown.evaluate("document.querySelectorAll('.plot path').length") == 16
        assert shown.troubles == []
