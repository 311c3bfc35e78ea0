"""The report's page stands alone, is safe whatever an event is named, and is drawn by a browser."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.report.files import is_replaceable, write_page
from sea_mq_worker.pipeline.jobs.report.formatting import duration, findings, share, size, step
from sea_mq_worker.pipeline.jobs.report.page import page
from sea_mq_worker.pipeline.jobs.report.plots import label, latencies
from tests.support.reports import HOSTILE, empty_report, hostile_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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


def test_the_page_loads_nothing_from_anywhere(hostile: str) -> None:
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
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
    assert re.search(r"url\(|@import", hostile.split("</style>", maxsplit=1)[0]) is None


def test_every_part_is_there_with_a_table_behind_each_plot(hostile: str) -> None:
    elements = Elements(hostile)
    ids = [attributes["id"] for _, attributes in elements.found if attributes.get("id")]
    assert len(set(ids)) == len(ids)
    assert {"verdict", "throughput", "latency", "retries", "dead", "largest", "backlog"} <= set(ids)
    drawn = json.loads(hostile.split('id="plots">')[1].split("</script>", maxsplit=1)[0])
    assert set(drawn) == {name for name in ids if name.startswith("plot-")}
    assert len(drawn) == 8
    tags = [tag for tag, _ in elements.found]
    assert tags.count("details") == len(drawn)
    assert all(a.get("aria-label") for _, a in elements.found if a.get("class") == "plot")


def test_text_from_events_is_shown_and_is_never_markup(hostile: str) -> None:
    elements = Elements(hostile)
    assert [tag for tag, _ in elements.found].count("script") == 3
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    links = [attributes["href"] or "" for tag, attributes in elements.found if tag == "a"]
    assert links
    assert all(link.startswith("#") for link in links)
    shown = HOSTILE.replace("\u202e", "\\u202e")
    assert elements.texts.count(shown) >= 5
    assert "\u202e" not in "".join(elements.texts[elements.texts.index(shown) :])


def test_a_label_in_a_plot_is_neither_markup_nor_endless() -> None:
    assert label("<b>&</b>") == "&lt;b&gt;&amp;&lt;/b&gt;"
    assert len(label("x" * 1000)) < 40


def test_an_empty_period_is_reported_without_plots() -> None:
    text = page(empty_report())
    assert "All is well" in text
    assert "No dead letters in this period." in text
    assert "Nothing waits." in text
    assert '<script type="application/json" id="plots">{}</script>' in text


def test_the_summary_lists_problems_the_worst_first() -> None:
    found = findings(hostile_report())
    assert [each.level for each in found] == ["bad", "bad", "bad", "warn", "warn", "warn", "warn"]
    assert found[0].text.startswith("3 events of 27 written will not be published: DEAD")
    assert found[2].text == "3 events waited to be published, the oldest for 1.0 d."


def test_durations_that_are_close_together_still_have_ticks_among_them() -> None:
    report = hostile_report()
    close = [replace(each, p50=0.159, p95=0.226, p99=0.229) for each in report.latencies]
    ticks = latencies(replace(report, latencies=close), "outbox")["ticks"]
    assert [text for at, text in ticks if 0.159 <= at <= 0.229] == ["200 ms"]


def test_numbers_have_units() -> None:
    assert [duration(s) for s in (0.0004, 0.25, 3.25, 60, 5400, 200_000)] == [
        "0.4 ms", "250 ms", "3.2 s", "1 min", "1.5 h", "2.3 d",
    ]  # fmt: skip
    assert [size(n) for n in (999, 1500, 2_000_000)] == ["999 B", "1.5 kB", "2 MB"]
    assert [share(0, 5), share(1, 100_000), share(1, 3)] == ["0 %", "< 0.1 %", "33 %"]
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
    assert {path.name for path in tmp_path.iterdir()} == {"other.html", "report.html"}
    with pytest.raises(PipelineError, match="cannot be written"):
        write_page("", tmp_path / "missing" / "report.html")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH")
def test_a_browser_draws_every_plot_and_logs_no_error(hostile: str, tmp_path: Path) -> None:
    assert BROWSER is not None
    place = tmp_path / "report.html"
    place.write_text(hostile)
    browser = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--virtual-time-budget=20000", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom",
            place.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert [line for line in browser.stderr.splitlines() if ":CONSOLE" in line] == []
    assert browser.stdout.count('data-drawn="yes"') == 8
    elements = Elements(browser.stdout)
    assert {a.get("href", "#") for tag, a in elements.found if tag == "a"} == {
        f"#{name}" for name in ("throughput", "latency", "retries", "dead", "largest", "backlog")
    }
