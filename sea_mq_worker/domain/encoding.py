"""What a message becomes on the wire, checked before it gets there.

A NATS server closes the connection on a body with headers over max_payload and on a control line over
4 KiB, and clients alter some headers in silence; neither may happen for one message's sake.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from sea_mq_worker.domain.messages import OutboundMessage

SUBJECT_BYTES_MAX = 3072
"""Leaves room on the control line of 4096 bytes for the reply subject and the sizes."""

HEADER_BYTES_MAX = 65_535
"""Of a stored message's whole header block."""
_BAD_SUBJECT = re.compile(r"[\s\x00-\x1f\x7f*>]|\.\.|^\.|\.$|^$")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class EncodedMessage(NamedTuple):
    """A message that can be sent unaltered, its headers encoded once for all that needs them."""

    subject: str
    head: bytes
    """The header block, the blank line behind it included."""
    payload: bytes
    size: int
    """Of header block and payload."""
    repeated: bool


class HeaderBlock(Mapping[str, str]):
    """Headers that whoever made them has encoded, of values that need no look before they are sent.

    Made for nearly every event, and read by name for next to none.
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
    """Encode a message, or say why it can never be sent unaltered."""
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
    """Say that what an event has to send is more than the server takes."""
    return f"{size} bytes with headers are more than the server's max_payload of {max_payload}"


def validation_error(message: OutboundMessage, max_payload: int) -> str:
    """Say why a message can never be sent unaltered; empty where it can."""
    ready = encode(message, max_payload)
    return ready if isinstance(ready, str) else ""


def with_headers(message: EncodedMessage, own: Mapping[str, str]) -> EncodedMessage:
    """Add headers that the limits leave room for."""
    head = message.head.removesuffix(b"\r\n") + "\r\n".join([*header_lines(own), "\r\n"]).encode()
    return message._replace(head=head, size=len(head) + len(message.payload))


def header_block(lines: Sequence[str]) -> bytes:
    """Encode lines of headers that are fit to be sent."""
    return "\r\n".join(["NATS/1.0", *lines, "\r\n"]).encode()


def header_lines(headers: Mapping[str, str]) -> list[str]:
    """Write headers, a line each."""
    return [f"{name}: {value}" for name, value in headers.items()]


def _encoded(headers: Mapping[str, str]) -> bytes | str:
    """Encode headers, or say what is wrong: look at all at once, and one by one only where something is."""
    values = list(headers.values())
    text = "".join(values)
    breaks = "\r" in text or "\n" in text or "\0" in text
    if breaks or not all(map(_is_token, headers)) or list(map(str.strip, values)) != values:
        return next(filter(None, map(header_problem, headers, values)))
    try:
        return header_block(header_lines(headers))
    except UnicodeEncodeError:
        return "a header has a character that UTF-8 cannot encode"


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
def _is_token(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None
