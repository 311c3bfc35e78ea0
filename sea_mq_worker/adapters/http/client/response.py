"""Parses one response from the bytes of a connection: llhttp parses, this module keeps parts and sets limits.

Bytes after a response are no part of the next one: they end the connection (``ResponseParser.reusable``).
"""

from dataclasses import dataclass

import httptools
import httpx2

_HEAD_BYTES_MAX = 65536
_HEADER_BYTES = 32
"""Bytes counted per header besides its text, as in HTTP/2; so the cap also limits their number."""
_SUCCESS = 200
_SWITCHING_PROTOCOLS = 101


@dataclass(frozen=True, slots=True)
class Response:
    """One response; ``body`` is as it came over the wire, cut if it was too long."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class ResponseParser:
    """Reads one response after another from a connection's bytes; call ``begin`` before each.

    Args:
        body_bytes_max: a longer body is not read to its end.

    Attributes:
        answer: the response once it is complete or cut, else None.
        interim: number of 1xx responses before it.
        reusable: whether the connection can take another request.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        self.answer: Response | None = None
        self.interim = 0
        self.reusable = False
        self._head_bytes = self._other_bytes = self._body_bytes = 0
        self.on_message_begin()

    def feed(self, data: bytes) -> None:
        """Parse more bytes.

        Raises:
            httpx2.RemoteProtocolError: the bytes are not HTTP, or the head is too long.
        """
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if self.answer is None:
                raise httpx2.RemoteProtocolError(str(error)) from error
        if self.answer is None:
            self._stop_at_bounds()

    def feed_eof(self) -> None:
        """End a response that announces no length with the connection."""
        if self._status is not None and self.answer is None:
            names = {name.lower() for name, _ in self._headers}
            if names.isdisjoint((b"content-length", b"transfer-encoding")):
                self._finish(self._status)

    def _stop_at_bounds(self) -> None:
        """Cut a response that is too long: only its status matters."""
        if self._body_bytes > self._body_bytes_max or self._other_bytes > _HEAD_BYTES_MAX:
            if self._status is None:
                raise httpx2.RemoteProtocolError("the head is too long")
            self._finish(self._status)

    def _finish(self, status: int) -> None:
        self.answer = Response(status, self._headers, b"".join(self._chunks))

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.answer is not None:
            self.reusable = False
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + _HEADER_BYTES
        if self._head_bytes > _HEAD_BYTES_MAX:
            raise ValueError("too many headers")
        if self._status is None:  # otherwise a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._other_bytes -= len(body)
        self._body_bytes += len(body)
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._status
        if status is None or self.answer is not None:
            return
        if status < _SUCCESS and status != _SWITCHING_PROTOCOLS:
            self.interim += 1
            self._status = None
            self._other_bytes = 0
            return
        self._finish(status)
        self.reusable = status != _SWITCHING_PROTOCOLS and self._parser.should_keep_alive()
