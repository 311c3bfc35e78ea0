"""What the site adds to MkDocs: README.md in front, titles as links, links out of `docs/` as mere text."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_DOCS = Path(__file__).parents[1]
_NAME = re.compile(r"<code>[^<\n]*_[^<\n]*</code>")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page."""
    readme = (_DOCS.parent / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Show links by their documents' titles, and those that lead off the site as mere text; MkDocs checks."""
    base = _DOCS.parent if page.file.src_uri == "index.md" else (_DOCS / page.file.src_uri).parent

    def _link(match: re.Match[str]) -> str:
        target = (base / match[2]).resolve()
        if target.exists() and not target.is_relative_to(_DOCS):
            return match[1]
        if target.suffix == ".md" and target.is_file() and match[1].endswith(target.name):
            return match[0].replace(match[1], _title(target), 1)
        return match[0]

    return _LINK.sub(_link, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Let long names break where their words end."""
    return _NAME.sub(lambda match: match[0].replace("_", "_<wbr>"), html)


def _title(document: Path) -> str:
    return document.read_text().partition("\n")[0].removeprefix("# ")
