"""Validate JSON without building a tree, so that memory does not grow with the text."""

import codecs
import re

import msgspec

_CHUNK_BYTES = 65_536
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Start of an escaped lone surrogate, which JSON allows and the validator refuses."""
_VALIDATOR = msgspec.json.Decoder(msgspec.Raw)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_json(text: bytes) -> bool:
    """Return whether a text is JSON in UTF-8; False for JSON nested deeper than the interpreter allows.

    Python allows about a thousand levels, from 3.14 on a few hundred thousand.
    """
    try:
        if not text.isascii():
            _check_utf8(memoryview(text))
        if b"\\ud" in text or b"\\uD" in text:
            text = _SURROGATE.sub(rb"\\u00", text)  # as long, and as valid, as before
        _VALIDATOR.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def members(text: bytes) -> dict[str, bytes] | None:
    """Return the members of a JSON object, their values as written; None for any other text."""
    try:
        return {name: bytes(value) for name, value in _MEMBERS.decode(text).items()}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _check_utf8(text: memoryview) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(text), _CHUNK_BYTES):
        decoder.decode(text[start : start + _CHUNK_BYTES])
    decoder.decode(b"", final=True)
