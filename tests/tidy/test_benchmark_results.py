"""The benchmarks' documents and pictures have the figures of docs/proof/benchmarks/*.json, as they are."""

from benchmarks.results import FOLDER, texts

REGENERATE = "differs from docs/proof/benchmarks/*.json: run python -m benchmarks.results"
FIGURES_BYTES_MAX = 100_000
PICTURE_BYTES_MAX = 60_000


def test_documents_and_pictures_are_what_the_figures_make_of_them() -> None:
    stale = [path.name for path, text in texts().items() if path.read_text() != text]
    assert stale == [], REGENERATE


def test_figures_and_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    too_large = {
        name: size
        for name, size in sizes.items()
        if size > (PICTURE_BYTES_MAX if name.endswith(".svg") else FIGURES_BYTES_MAX)
    }
    assert too_large == {}
