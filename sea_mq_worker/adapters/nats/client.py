"""A nats-py client that survives malformed messages, new credentials, failed logins and the server's -ERR.

A server forwards any bytes that a producer put into a subject or a header block. If nats-py cannot read
them, its read loop silently ends or the connection breaks, again at every redelivery. The methods overridden
here are not public; the pinned version and a test guard them.
"""

import asyncio
import base64
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import nats.errors
import nkeys
from nats.aio.client import Client
from nats.protocol.parser import PERMISSIONS_ERR, Parser

_WORD = r"([^ \t\r\n]+)"
_BEGINNING = rf"{_WORD}[ \t]+{_WORD}[ \t]+({_WORD}[ \t]+)?"
_JWT = re.compile(rb"-+BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(rb"-+BEGIN USER NKEY SEED-+\s+(\S+)\s")


_KNOWN_NAME_BYTES_MAX = 64


def _header_name(raw: bytes) -> str:
    """Decode a header's name; empty if it is not a valid one."""
    name = raw.strip().decode("ascii", "replace")
    return name if name.isascii() and name.split() == [name] else ""


_known_header_name = lru_cache(maxsize=256)(_header_name)
"""For short names, of which the messages of a stream have the same few; long ones would fill the memory."""


class FileCredentials:
    """Signs logins with credentials from a file that is read at each login, so new ones need no restart.

    nats-py reads a credentials file at each login, too, but hangs on a file without a JWT, crashes on a
    partly written one, and keeps sending a seed file's first public key.

    Args:
        path: a credentials file (JWT and seed), or an nkey's seed alone.
        with_jwt: whether the file is a credentials file.

    Attributes:
        jwt: the JWT at the latest signature; empty for an nkey.
        public_key: the public key at the latest signature.
    """

    def __init__(self, path: str, *, with_jwt: bool) -> None:
        self.jwt = b""
        self.public_key = ""
        self._path = Path(path)
        self._with_jwt = with_jwt

    def sign(self, nonce: str) -> bytes:
        """Read the file and sign.

        Raises:
            OSError: the file cannot be read.
            nats.errors.Error: the file holds no usable credentials.
        """
        content = self._path.read_bytes()
        jwt, seed = _JWT.search(content), _SEED.search(content)
        try:
            pair = nkeys.from_seed(bytearray(seed[1] if self._with_jwt and seed else content.strip()))
            self.public_key = pair.public_key.decode()
            signature = base64.b64encode(pair.sign(nonce.encode()))
        except (nkeys.NkeysError, ValueError, TypeError):
            raise nats.errors.Error(f"nats: there is no usable nkey seed in {self._path}") from None
        if self._with_jwt and not jwt:
            raise nats.errors.Error(f"nats: there is no user JWT in {self._path}")
        self.jwt = jwt[1] if jwt else b""
        return signature


def _with_globals(method: Any, **names: object) -> Any:
    """Copy a method of nats-py that sees other globals; nats-py itself stays as it is."""
    seen = method.__globals__ | names
    return FunctionType(method.__code__, seen, method.__name__, method.__defaults__, method.__closure__)


class _Parser(Parser):
    """Ends a word of the protocol at a space or a tab.

    nats-py also ends words at other white space, such as a form feed in a subject, and then reports a
    protocol error for the rest.
    """

    parse = _with_globals(
        Parser.parse,
        MSG_RE=re.compile(rf"\AMSG[ \t]+{_BEGINNING}(\d+)\r\n".encode()),
        HMSG_RE=re.compile(rf"\AHMSG[ \t]+{_BEGINNING}(\d+)[ \t]+(\d+)\r\n".encode()),
    )


class ResilientClient(Client):
    """Reads malformed messages too: a bad header block as no headers, bad UTF-8 in a subject as U+FFFD."""

    _read_headers = _with_globals(Client._process_headers, parse_email=None)  # noqa: SLF001
    """Does without fast-mail-parser, even if it is installed: each value that it returns is a list."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)
        self._passed_on: tuple[tuple[bytes, Callable[[str, bytes], None]], ...] = ()

    def pass_on(self, prefix: str, receive: Callable[[str, bytes], None]) -> None:
        """Pass messages without headers under a prefix of subjects on at once; ``receive`` must not raise.

        nats-py's message object, queue and task for an acknowledgement cost as much as all else of a publish.
        """
        self._passed_on += ((prefix.encode(), receive),)

    @property
    def server_domain(self) -> str:
        """The JetStream domain of the connected server; empty if it has none."""
        return str(self._server_info.get("domain", ""))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if headers is None:
            for prefix, receive in self._passed_on:
                if subject.startswith(prefix):
                    return receive(subject.decode(errors="replace"), data)
        return await super()._process_msg(sid, subject, reply, data, headers)

    async def write(self, frames: Iterable[bytes]) -> None:
        """Send frames of the protocol in one write; unlike ``publish``, check nothing."""
        await self._send_command(b"".join(frames))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _flusher(self) -> None:
        """Connect again if a write finds the socket closed.

        uvloop raises RuntimeError then, which ends nats-py's flusher, and after that each caller's write.
        """
        await super()._flusher()
        if self.is_connected:
            await self._process_op_err(ConnectionResetError("the socket is closed"))

    def _setup_nkeys_connect(self) -> None:
        path, with_jwt = self._user_credentials or self._nkeys_seed, self._user_credentials is not None
        login = FileCredentials(str(path), with_jwt=with_jwt)
        login.sign("")  # report unusable credentials now, before a server requests them

        def sign(nonce: str) -> bytes:
            signature = login.sign(nonce)
            self._public_nkey = login.public_key
            return signature

        self._signature_cb = sign
        self._user_jwt_cb = (lambda: bytearray(login.jwt)) if with_jwt else None

    def _connect_command(self) -> bytes:
        """Refuse to log in, or to send anything, in plain text where TLS is demanded."""
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise nats.errors.Error("no TLS is offered, although it is demanded")
        return super()._connect_command()

    async def _process_connect_init(self) -> None:
        """End the socket of a failed login, because nats-py connects again and never closes it."""
        try:
            await super()._process_connect_init()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End the socket without sending the rest, which a frozen server would never take."""
        if writer := getattr(self._transport, "_io_writer", None):
            with suppress(AttributeError):  # asyncio raises it if the socket is closed already
                writer.transport.abort()

    async def _attempt_reconnect(self) -> None:
        """Leave the old socket at once, because nats-py waits until its peer has taken all bytes.

        Drop the unsent bytes too. Their senders no longer wait, and publish the events again. If nats-py sent
        the bytes after a long outage, the stream could store both copies, outside its deduplication window.

        Go on after any error; nats-py stops after one that it does not expect, and never connects again.
        """
        while not self.is_closed:
            self.abort()
            self._pending, self._pending_data_size = [], 0
            try:
                return await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001 - a reconnect that ends leaves a worker without a broker
                await self._error_cb(error)
                if not self.is_closed:
                    self._status = Client.RECONNECTING
        return None

    async def _process_err(self, err_msg: str) -> None:
        """Connect again after the server closes a connection.

        nats-py would close for good, for example after a message above a lowered limit, or with expired
        credentials, although their file may hold new ones.
        """
        if PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg.strip(chr(39))}"))

    async def _process_op_err(self, e: Exception) -> None:
        """Report each error that breaks the connection; nats-py reports only some."""
        if not (self.is_closed or self.is_reconnecting):
            await self._error_cb(e)
        await super()._process_op_err(e)

    async def _process_pong(self) -> None:
        """Take an answer that its caller no longer awaits; at one nats-py ends its read loop."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await self._read_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return {}
        return found

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Parse as nats-py does, without its check of every character of a name, which is its main cost."""
        headers = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            known = _known_header_name if len(name) <= _KNOWN_NAME_BYTES_MAX else _header_name
            if colon and (key := known(name)):
                headers[key] = value.strip().decode("utf-8", "replace")
        return headers

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        return super()._build_message(sid, subject.decode(errors="replace").encode(), reply, data, headers)
