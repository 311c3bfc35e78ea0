"""What an answer says is wrong, by RFC 9457: of its problem details the type and the title alone.

Its ``detail`` and ``instance`` tell of the one message, and so may repeat the payload: they are never read.
"""

import json

_CONTENT_TYPE = b"application/problem+json"
_CHARS_MAX = 120


def problem_text(headers: list[tuple[bytes, bytes]], body: bytes) -> str:
    """Return type and title, each on one line and not at any length; empty: the answer has none."""
    named = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    if named.partition(b";")[0].strip().lower() != _CONTENT_TYPE:
        return ""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(members, dict):
        return ""
    return ", ".join(filter(None, (_line(members.get(name)) for name in ("type", "title"))))


def _line(member: object) -> str:
    text = " ".join(member.split()) if isinstance(member, str) else ""
    return "".join(filter(str.isprintable, text))[:_CHARS_MAX]
