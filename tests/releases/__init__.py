"""Dumps of released schemas with rows in every state; upgrades begin from them.

``python -m tests.releases 1.0`` writes ``tests/releases/1.0.sql`` at a release, once: the file never changes.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
DUMPS = sorted(FOLDER.glob("[0-9]*.sql"))
