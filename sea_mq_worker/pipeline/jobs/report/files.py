"""Write the page to a file; replace only an earlier report."""

import os
import tempfile
from pathlib import Path

from sea_mq_worker.pipeline.errors import PipelineError

_GENERATOR = b'<meta name="generator" content="sea_mq_worker report">'
_HEAD_BYTES = 2048


def write_page(text: str, path: Path) -> None:
    """Write the complete page, or leave the file unchanged.

    Raises:
        PipelineError: the file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise PipelineError(f"{path}: the report cannot be written: {error.strerror}") from error


def is_replaceable(path: Path) -> bool:
    """Return whether writing here replaces nothing except an earlier report."""
    if not path.exists():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)
