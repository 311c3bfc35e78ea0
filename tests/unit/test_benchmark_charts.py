"""The benchmarks' pictures: bars to scale, figures in words, one text for one set of figures."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks.charts import Bar, Group, chart

SVG = "{http://www.w3.org/2000/svg}"
SERIES = ("ours", "theirs")


def bar(label: str = "a", note: str = "", **parts: float) -> Bar:
    return Bar(label=label, parts={name.strip("_"): value for name, value in parts.items()}, note=note)


def drawn(*groups: Group, one_scale: bool = True) -> ET.Element:
    return ET.fromstring(chart("Rates", groups, series=SERIES, one_scale=one_scale))


def widths(picture: ET.Element) -> list[float]:
    """Widths of the bars: the legend's squares and the card, which come first, are no bars."""
    boxes = [box for box in picture.iter(f"{SVG}rect") if box.get("class") != "card"]
    return [float(box.attrib["width"]) for box in boxes[len(SERIES) :]]


def test_bars_are_to_scale() -> None:
    whole, half = widths(drawn(Group(title="x", bars=[bar(ours=10), bar(theirs=5)])))
    assert whole == pytest.approx(2 * half)


def test_groups_share_a_scale_unless_each_is_to_have_its_own() -> None:
    groups = Group(title="x", bars=[bar(ours=10)]), Group(title="y", bars=[bar(ours=1)])
    ten, one = widths(drawn(*groups))
    assert ten == pytest.approx(10 * one)
    ten, one = widths(drawn(*groups, one_scale=False))
    assert ten == one


def test_parts_follow_each_other_and_the_blank_one_is_not_drawn() -> None:
    picture = drawn(Group(title="x", bars=[bar(_=4, ours=1, theirs=5), bar(theirs=10)]))
    _, _, ours, theirs, all_of_it = [box for box in picture.iter(f"{SVG}rect") if box.get("class") != "card"]
    blank = float(ours.attrib["x"]) - float(all_of_it.attrib["x"])
    assert blank == pytest.approx(0.4 * float(all_of_it.attrib["width"]))
    end_of_ours = float(ours.attrib["x"]) + float(ours.attrib["width"])
    assert end_of_ours == pytest.approx(float(theirs.attrib["x"]), abs=0.1)


def test_the_description_has_every_figure_in_words_and_markup_is_text() -> None:
    picture = drawn(Group(title="no keys", bars=[bar("<a & b>", "7/s", ours=7), bar("c", "3/s", theirs=3)]))
    assert picture.findtext(f"{SVG}title") == "Rates"
    assert picture.findtext(f"{SVG}desc") == "no keys, <a & b>: 7/s. no keys, c: 3/s."
    assert [text.text for text in picture.iter(f"{SVG}text")].count("<a & b>") == 1
