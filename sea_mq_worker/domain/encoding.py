"""Encode messages for the wire, and validate them before they are sent.

A NATS server closes the connection if body and headers exceed max_payload, or if a control line exceeds
4 KiB. Clients silently alter some headers. One message must cause neither.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from sea_mq_worker.domain.messages import OutboundMessage

SUBJECT_BYTES_MAX = 3072
"""Leaves room on the control line of 4096 bytes for the reply subject and the sizes."""

HEADER_BYTES_MAX = 65_535
"""Limit of the server on the header block of a stored message, in bytes."""
_BAD_SUBJECT = re.compile(r"[\s\x00-\x1f\x7f*>]|\.\.|^\.|\.$|^$")
_is_token = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch


class EncodedMessage(NamedTuple):
    """A message that can be sent unaltered; its headers are encoded only once."""

    subject: str
    head: bytes
    """The header block, including the blank line after it."""
    payload: bytes
    size: int
    """Bytes of header block and payload."""
    repeated: bool

    def ending(self, lines: bytes) -> "EncodedMessage":
        """Add header lines, with the blank line after them; the limits must leave room."""
        head = self.head[:-2] + lines
        return EncodedMessage(self.subject, head, self.payload, len(head) + len(self.payload), self.repeated)


class HeaderBlock(Mapping[str, str]):
    """Headers that are already encoded, with values that need no validation.

    Nearly every event has one, and almost none is read by name.
    """

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    def __getitem__(self, name: str) -> str:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @cached_property
    def _by_name(self) -> Mapping[str, str]:
        lines = self.encoded.decode().split("\r\n")[1:-2]
        return dict(line.split(": ", 1) for line in lines)


def encode(message: OutboundMessage, max_payload: int) -> EncodedMessage | str:
    """Encode a message, or return why it can never be sent unaltered."""
    if why := subject_problem(message.subject):
        return why
    headers = message.headers
    head = headers.encoded if isinstance(headers, HeaderBlock) else _encoded(headers)
    if isinstance(head, str):
        return head
    size = len(head) + len(message.payload)
    if size > max_payload:
        return too_large(size, max_payload)
    if len(head) > HEADER_BYTES_MAX:
        return f"{len(head)} bytes of headers are more than {HEADER_BYTES_MAX}"
    return EncodedMessage(message.subject, head, message.payload, size, message.repeated)


def too_large(size: int, max_payload: int) -> str:
    """Return the error of a message that exceeds the server's max_payload."""
    return f"{size} bytes with headers are more than the server's max_payload of {max_payload}"


def validation_error(message: OutboundMessage, max_payload: int) -> str:
    """Return why a message can never be sent unaltered; empty: it can be sent."""
    ready = encode(message, max_payload)
    return ready if isinstance(ready, str) else ""


def header_block(lines: Sequence[str]) -> bytes:
    """Encode valid header lines as a header block."""
    return "\r\n".join(["NATS/1.0", *lines, "\r\n"]).encode()


def header_lines(headers: Mapping[str, str]) -> list[str]:
    """Format headers, one line each."""
    return [f"{name}: {value}" for name, value in headers.items()]


def _encoded(headers: Mapping[str, str]) -> bytes | str:
    """Encode headers, or return the error; check all at once, and each alone only after a failure."""
    values = list(headers.values())
    text = "".join(values)
    breaks = "\r" in text or "\n" in text or "\0" in text
    if breaks or not all(map(_is_token, headers)) or list(map(str.strip, values)) != values:
        problems = ((name, header_problem(name, value)) for name, value in headers.items())
        return next(f"header {name[:64]!r} {problem}" for name, problem in problems if problem)
    try:
        return header_block(header_lines(headers))
    except UnicodeEncodeError:
        return "a header has a character that UTF-8 cannot encode"


def header_problem(name: str, value: str) -> str:
    """Return why a header can never be sent unaltered; empty: it can be sent."""
    if not _is_token(name):
        return "has a name that is blank or holds other than letters, digits and !#$%&'*+-.^_`|~"
    if any(character in value for character in "\r\n\0"):
        return "has a value with CR, LF or NUL"
    if value != value.strip():
        return "has a value with leading or trailing white space, which the protocol cannot carry"
    return ""


@lru_cache(maxsize=1024)
def subject_problem(subject: str) -> str:
    """Return why a subject cannot be published to; empty: it can be."""
    if _BAD_SUBJECT.search(subject):
        return "the subject has a wildcard, an empty token, white space or a control character"
    if len(subject.encode(errors="replace")) > SUBJECT_BYTES_MAX:
        return f"the subject is longer than {SUBJECT_BYTES_MAX} bytes"
    return "" if subject.encode(errors="ignore").decode() == subject else "the subject is not UTF-8"
