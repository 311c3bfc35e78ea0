"""Make foreign text storable in a column."""


def to_storable_text(text: str) -> str:
    """Return a text that PostgreSQL can store: without NUL, and valid UTF-8."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
