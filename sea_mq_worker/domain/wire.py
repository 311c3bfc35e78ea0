"""What a message becomes on the wire, checked before it gets there.

A NATS server closes the connection on a body with headers over max_payload and on a control line over
4 KiB, and clients alter some headers in silence; neither may happen for one message's sake.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from sea_mq_worker.domain.messages import OutboundMessage

SUBJECT_BYTES_MAX = 3072
"""Leaves room on the control line of 4096 bytes for the reply subject and the sizes."""

HEADER_BYTES_MAX = 65_535
"""Of a stored message's whole header block."""
_FRAME_BYTES = len(b"NATS/1.0\r\n\r\n")
_LINE_BYTES = len(b": \r\n")
_BAD_SUBJECT = re.compile(r"[\s\x00-\x1f\x7f*>]|\.\.|^\.|\.$|^$")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def problem(message: OutboundMessage, max_payload: int) -> str:
    """Say why a message can never be sent unaltered; empty where it can."""
    return (
        subject_problem(message.subject)
        or _headers_problem(message.headers)
        or _size_problem(message, max_payload)
    )


def encoded_bytes(message: OutboundMessage) -> int:
    """Return the size of headers and body on the wire."""
    headers = message.headers
    text = "".join(headers) + "".join(headers.values())
    characters = len(text) if text.isascii() else len(text.encode())
    return _FRAME_BYTES + characters + _LINE_BYTES * len(headers) + len(message.payload)


def _headers_problem(headers: Mapping[str, str]) -> str:
    """Look at all of them at once, and one by one only where something is wrong."""
    values = list(headers.values())
    text = "".join(values)
    breaks = "\r" in text or "\n" in text or "\0" in text
    if not breaks and _are_tokens(tuple(headers)) and list(map(str.strip, values)) == values:
        return ""
    return next(filter(None, map(header_problem, headers, values)))


def _size_problem(message: OutboundMessage, max_payload: int) -> str:
    try:
        size = encoded_bytes(message)
    except UnicodeEncodeError:
        return "a header has a character that UTF-8 cannot encode"
    if size > max_payload:
        return f"{size} bytes with headers are more than the server's max_payload of {max_payload}"
    if size - len(message.payload) > HEADER_BYTES_MAX:
        return f"{size - len(message.payload)} bytes of headers are more than {HEADER_BYTES_MAX}"
    return ""


def header_problem(name: str, value: str) -> str:
    """Say why a header can never be sent unaltered; empty where it can."""
    if not _is_token(name):
        return f"header name {name[:64]!r} cannot be sent: only letters, digits and !#$%&'*+-.^_`|~ can"
    if value != value.strip() or "\r" in value or "\n" in value or "\0" in value:
        return f"the value of header {name[:64]!r} has a line break, NUL or outer white space"
    return ""


@lru_cache(maxsize=1024)
def subject_problem(subject: str) -> str:
    """Say why nothing can be published to a subject; empty where it can."""
    if _BAD_SUBJECT.search(subject):
        return "the subject has a wildcard, an empty token, white space or a control character"
    if len(subject.encode(errors="replace")) > SUBJECT_BYTES_MAX:
        return f"the subject is longer than {SUBJECT_BYTES_MAX} bytes"
    return "" if subject.encode(errors="ignore").decode() == subject else "the subject is not UTF-8"


@lru_cache(maxsize=1024)
def _are_tokens(names: tuple[str, ...]) -> bool:
    return all(map(_is_token, names))


@lru_cache(maxsize=1024)
def _is_token(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None
