"""What the site's build adds to MkDocs: README.md as front page, and links out of `docs/` as mere text."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_DOCS = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page."""
    readme = (_DOCS.parent / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leave the text of a link to what is in the repository but not on the site; others are checked."""
    base = _DOCS.parent if page.file.src_uri == "index.md" else _DOCS

    def _text(match: re.Match[str]) -> str:
        target = (base / match[2]).resolve()
        return match[1] if target.exists() and not target.is_relative_to(_DOCS) else match[0]

    return _LINK.sub(_text, markdown)
