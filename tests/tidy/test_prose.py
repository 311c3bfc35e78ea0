"""Documents keep to the rules of prose in CONTRIBUTING.md, as far as a pattern can see it."""

import re

import pytest

from tests.support.documents import ROOT, documents

MERGE_MARK = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
GENERATED = re.compile(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
LONE_ROW = re.compile(r"\n\n(\|.*)\n(?!\|[ :|-]+\|\n)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
UNCLEAR = re.compile(r"\b(whoever|so many|at the least|mends?|mended|tells|told|buries)\b", re.IGNORECASE)


def unclear_words(text: str) -> list[str]:
    """Find the words in the sentences that people wrote: no code, no generated section."""
    return [found[0] for found in UNCLEAR.finditer(CODE.sub("", GENERATED.sub("", text)))]


@pytest.mark.parametrize("document", documents())
def test_a_document_uses_plain_words_and_holds_no_mark_of_a_merge(document: str) -> None:
    text = (ROOT / document).read_text()
    assert unclear_words(text) == []
    assert MERGE_MARK.search(text) is None


@pytest.mark.parametrize("document", documents())
def test_every_row_of_a_document_stands_in_a_table(document: str) -> None:
    assert LONE_ROW.findall((ROOT / document).read_text()) == []


def test_unclear_words_are_found_in_sentences_alone() -> None:
    text = "It tells `told`.\n<!-- table -->\n| mends |\n<!-- end of table -->\n"
    assert unclear_words(text) == ["tells"]
