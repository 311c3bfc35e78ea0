"""Documents hold no mark of a merge, and no row without its table: both show as plain text."""

import re

from tests.support.documents import ROOT, documents

MERGE_MARK = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
LONE_ROW = re.compile(r"\n\n(\|.*)\n(?!\|[ :|-]+\|\n)")


def test_no_document_holds_a_mark_of_a_merge_or_a_row_without_its_table() -> None:
    texts = {document: (ROOT / document).read_text() for document in documents()}
    assert [document for document, text in texts.items() if MERGE_MARK.search(text)] == []
    assert {document: rows for document, text in texts.items() if (rows := LONE_ROW.findall(text))} == {}
