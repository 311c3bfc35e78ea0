"""What others have written, made fit for a column."""


def to_storable_text(text: str) -> str:
    """Return a text as PostgreSQL can keep it: without NUL, and valid UTF-8."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
