"""One connection to the broker, which reconnects without limit, and requests to JetStream's API over it.

nats-py loses its read loop when a callback raises, and buffers what is published while the connection is
down. So callbacks here never raise, and callers check ``is_connected`` before they send.

A server forwards any bytes that a producer put into a subject or a header block. If nats-py cannot read
them, its read loop silently ends or the connection breaks, again at every redelivery. ``ResilientClient``
repairs that for its own connection alone. The methods that it overrides are not public; the pinned version
and a test guard them.
"""

import asyncio
import base64
import contextlib
import json
import random
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, cast

import nats.errors
import nkeys
from nats.aio.client import Client, Server
from nats.protocol.parser import PERMISSIONS_ERR, Parser

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.errors import (
    NO_HANDSHAKE_FIRST,
    PublishDeniedError,
    api_failed,
    connect_failed,
    is_refusal,
    plain,
)

# --- nats-py, repaired.

_JWT = re.compile(rb"-+BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(rb"-+BEGIN USER NKEY SEED-+\s+(\S+)\s")
_WORD = r"([^ \t\r\n]+)"
_BEGINNING = rf"{_WORD}[ \t]+{_WORD}[ \t]+({_WORD}[ \t]+)?"
_KNOWN_NAME_BYTES_MAX = 64


def sign_in(file: Path, nonce: str, *, with_jwt: bool) -> tuple[str, bytes, bytes]:
    """Sign with the credentials in a file (JWT and seed, or an nkey's seed alone), as they are now.

    Return the public key, the JWT and the signature. nats-py reads the file at each login, too, but hangs on
    a file without a JWT, crashes on a partly written one, and keeps sending a seed file's first public key.
    It raises OSError for a file that cannot be read, nats.errors.Error for one without usable credentials.
    """
    content = file.read_bytes()
    jwt, seed = _JWT.search(content), _SEED.search(content)
    try:
        pair = nkeys.from_seed(bytearray(seed[1] if with_jwt and seed else content.strip()))
        public_key = pair.public_key.decode()
        signature = base64.b64encode(pair.sign(nonce.encode()))
    except (nkeys.NkeysError, ValueError, TypeError):
        raise nats.errors.Error(f"nats: there is no usable nkey seed in {file}") from None
    if with_jwt and not jwt:
        raise nats.errors.Error(f"nats: there is no user JWT in {file}")
    return public_key, jwt[1] if jwt else b"", signature


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


def _header_name(raw: bytes) -> str:
    """Decode a header's name; empty if it is not a valid one."""
    name = raw.strip().decode("ascii", "replace")
    return name if name.isascii() and name.split() == [name] else ""


_known_header_name = lru_cache(maxsize=256)(_header_name)
"""For short names, of which the messages of a stream have the same few; long ones would fill the memory."""


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
        """Read the file at each login, so new credentials need no restart."""
        file, with_jwt = Path(str(self._user_credentials or self._nkeys_seed)), bool(self._user_credentials)
        jwt = b""

        def sign(nonce: str) -> bytes:
            nonlocal jwt
            self._public_nkey, jwt, signature = sign_in(file, nonce, with_jwt=with_jwt)
            return signature

        sign("")  # report unusable credentials now, before a server requests them
        self._signature_cb = sign
        self._user_jwt_cb = (lambda: bytearray(jwt)) if with_jwt else None

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
            with contextlib.suppress(AttributeError):  # asyncio raises it if the socket is closed already
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


# --- The connection.

PENDING_BYTES_MAX = 8 * 1024 * 1024
"""Bytes that nats-py buffers before a publish waits for the socket; the publishers stay below it."""

_SERVER_MIN = (2, 10)
_RECONNECT_WAIT_SECONDS = 1
_PINGS_UNANSWERED_MAX = 2
_HANDSHAKE_SECONDS_MAX = 5.0
_NAMED_SECONDS_MAX = 2.0
"""Time for a server that the cluster has named: its address may lead nowhere from here."""
_CLOSE_SECONDS_MAX = 2.0
_RENEWAL_SECONDS_MAX = 10.0
"""Longest wait before the next connection while the server denies replies."""
_DENIED = re.compile(r'permissions violation for \w+ to "([^"]+)"')

Listener: TypeAlias = Callable[[str, str], None]
"""Called with an event (connected, disconnected, reconnected, denied, error) and text."""


class NatsConnection:
    """One nats-py client, shared by publishers and consumers; ``connect`` opens it."""

    def __init__(self, on_event: Listener, *, domain: str = "", ignore_discovered: bool = False) -> None:
        self.domain = domain
        """Of the JetStream to use; empty for the connected server's own."""
        self.client = ResilientClient()
        self.replies_denied = False
        """The server forwards no reply to this connection, so no request has an answer. It has dropped the
        subscriptions and takes others once the user may subscribe again, which it does not report. So the
        connection is renewed, again and again."""
        self._last_error: Exception = TimeoutError("no answer")
        self._refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._refusals = 0
        self._refused_at: float | None = None
        self._denials = 0
        self._pending_requests: dict[asyncio.Future[str], str] = {}
        self._ignore_discovered = ignore_discovered
        self._round: list[str] = []
        self._rounds = 0
        self._tried_at: dict[str, float] = {}
        self._listeners: list[Listener] = [on_event]
        self._closing = False

    async def open(self, timeout_seconds: float, **options: Any) -> None:
        """Connect for the first time, with options of nats-py.

        The time is limited here: with unlimited reconnects nats-py never ends the first connect. It ends as
        well once the connect was refused as often as there are servers.
        """
        if options["tls_handshake_first"]:
            self._last_error = TimeoutError(f"no answer; {NO_HANDSHAKE_FIRST}")
        attempt: asyncio.Future[Any] = asyncio.ensure_future(
            self.client.connect(
                connect_timeout=cast("int", min(timeout_seconds, _HANDSHAKE_SECONDS_MAX)),
                max_outstanding_pings=_PINGS_UNANSWERED_MAX,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT_WAIT_SECONDS,
                pending_size=PENDING_BYTES_MAX,
                flush_timeout=timeout_seconds,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                reconnect_to_server_handler=self.next_server,
                **options,
            )
        )
        either: set[asyncio.Future[Any]] = {attempt, self._refused}
        try:
            await asyncio.wait(either, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.done():
                raise self._refused.result() if self._refused.done() else self._last_error
            attempt.result()
        finally:
            # A time limit inside that ends at the same moment swallows a cancellation.
            while not attempt.done():
                attempt.cancel()
                await asyncio.wait({attempt}, timeout=_CLOSE_SECONDS_MAX)
            _ignore_error(attempt)
        if (uri := self.client.connected_url) is not None:
            self._tried_at[uri.netloc] = asyncio.get_running_loop().time()  # so it is not tried again at once
        if self.server_version < _SERVER_MIN:
            found, wanted = (".".join(map(str, version)) for version in (self.server_version, _SERVER_MIN))
            raise ContractError(f"nats-server {found} is too old for the worker; it needs {wanted} or newer")

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket to send a message to."""
        return self.client.is_connected

    @property
    def trouble(self) -> str:
        """Why the connection is down, with the fix if the server refuses it; empty while it is up."""
        if self.is_connected:
            return self._denial if self.replies_denied else ""
        reason = plain(self._last_error)
        if is_refusal(self._last_error):
            return f"the server refuses the worker ({reason}): correct its credentials, or the server's"
        return f"the connection is down ({reason})"

    @property
    def refused_seconds(self) -> float:
        """Seconds since the server began to refuse the worker; 0 while it does not."""
        return 0.0 if self._refused_at is None else asyncio.get_running_loop().time() - self._refused_at

    @property
    def server_version(self) -> tuple[int, int, int]:
        """Version of the connected server; the oldest supported version if the server reports none."""
        here = (0, 0, 0)
        with contextlib.suppress(ValueError):
            version = self.client.connected_server_version
            here = version.major, version.minor, version.patch
        return here if any(here) else (*_SERVER_MIN, 0)

    @property
    def undeclared_domain(self) -> str:
        """The domain of the connected server's JetStream, unless the settings name one.

        The server may be a leaf, and the streams in another domain.
        """
        return "" if self.domain else self.client.server_domain

    def api_subject(self, subject: str) -> str:
        return f"$JS.{self.domain}.API.{subject}" if self.domain else f"$JS.API.{subject}"

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at every later event; it must return quickly."""
        self._listeners.append(listener)

    async def request(self, subject: str, body: bytes, *, timeout_seconds: float) -> bytes:
        """Send a request and return the body of its reply; raise nats-py's errors.

        Raise ContractError at once without the permission to send the request, or to receive replies.
        """
        self.check_replies_allowed()
        answer = asyncio.ensure_future(self.client.request(subject, body, timeout=timeout_seconds))
        denial: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending_requests[denial] = _request_key(subject)
        try:
            either: set[asyncio.Future[Any]] = {answer, denial}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        finally:
            del self._pending_requests[denial]
        if answer.done():
            return (await answer).data
        answer.add_done_callback(_ignore_error)  # nats-py ends the request at its time limit
        self.check_replies_allowed()
        mapped = denial.result()
        where = subject if mapped == subject.lower() else f"{subject}, which the account maps to {mapped}"
        raise PublishDeniedError(f"the user has no permission to publish to {where}; grant it")

    def check_replies_allowed(self) -> None:
        """Raise ContractError if the server denies the subscriptions that receive replies."""
        if self.replies_denied:
            raise ContractError(self._denial)

    @property
    def _denial(self) -> str:
        return (
            f"the server lets no answer through to {self._inbox_prefix}.>; "
            "set SEA_MQ_NATS_INBOX_PREFIX to what the user may subscribe to"
        )

    @property
    def _inbox_prefix(self) -> str:
        return self.client.new_inbox().rpartition(".")[0]

    async def close(self) -> None:
        """Close for good, within a time limit even if the socket accepts no bytes; safe to call twice."""
        self._closing = True
        # A task of its own, because nats-py ends with CancelledError where it cancels its own reconnect.
        closing = asyncio.ensure_future(self.client.close())
        closing.add_done_callback(_ignore_error)
        try:
            await asyncio.wait({closing}, timeout=_CLOSE_SECONDS_MAX)
        finally:
            closing.cancel()
            self.client.abort()

    def emit(self, event: str, text: str) -> None:
        for listener in self._listeners:
            with contextlib.suppress(Exception):
                listener(event, text)

    async def _on_error(self, error: Exception) -> None:
        if error is self._last_error:
            return None  # nats-py reports some errors twice
        self._last_error = error
        if not is_refusal(error):
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = asyncio.get_running_loop().time()
        self._refusals += is_refusal(error)
        if self._refusals >= len(self.client.servers) and not self._refused.done():
            self._refused.set_result(error)
        denied = _DENIED.search(str(error))
        if not denied:
            return self.emit("error", plain(error))
        if denied[1].lower().startswith(f"{self._inbox_prefix.lower()}."):
            self._deny_replies()
        for denial, subject in self._pending_requests.items():
            if (subject == _request_key(denied[1]) or self.replies_denied) and not denial.done():
                denial.set_result(denied[1])
        return self.emit("denied", denied[1])

    def next_server(self, servers: Sequence[Server], _info: object) -> tuple[Server, float]:
        """Choose the server to try next, and the wait before that.

        Each server that the cluster has named comes after all configured ones, because it may lead nowhere::

            a, b configured; x, y named by the cluster     a b x  b a y  a b x ...
        """
        named = {uri.netloc for uri in self.client.discovered_servers}
        known = {server.uri.netloc: server for server in servers}
        if not self._round:
            self._round = [name for name in known if name not in named]
            random.shuffle(self._round)
            if named and not self._ignore_discovered:
                self._round.append(sorted(named)[self._rounds % len(named)])
            self._rounds += 1
        name, now = self._round.pop(0), asyncio.get_running_loop().time()
        limit = _NAMED_SECONDS_MAX if name in named else _HANDSHAKE_SECONDS_MAX
        self.client.options["connect_timeout"] = limit
        was_tried = now - self._tried_at.get(name, float("-inf")) < _RECONNECT_WAIT_SECONDS
        self._tried_at[name] = now
        return known[name], _RECONNECT_WAIT_SECONDS if was_tried else 0.0

    async def _on_disconnected(self) -> None:
        self._round = []
        self.replies_denied = False  # a reconnect tells it anew, before it is complete
        if not self._closing:
            self.emit("disconnected", plain(self._last_error))

    async def _on_reconnected(self) -> None:
        self._refused_at = None
        if not self.replies_denied:
            self._denials = 0
        self.emit("reconnected", "")

    def _deny_replies(self) -> None:
        """Renew the connection after a while, longer each time; several subscriptions are denied at once."""
        if not self.replies_denied:
            self.replies_denied = True
            delay = min(2.0**self._denials, _RENEWAL_SECONDS_MAX)
            self._denials += 1
            asyncio.get_running_loop().call_later(delay, self._renew, self._denials)

    def _renew(self, denials: int) -> None:
        if self.replies_denied and denials == self._denials and not self._closing:
            self._renewal = asyncio.ensure_future(self.client.force_reconnect())


def _request_key(subject: str) -> str:
    """Drop the prefix of a request: an account may map another account's API to its own prefix."""
    return subject.lower().partition(".api.")[2] or subject.lower()


def _ignore_error(answer: "asyncio.Future[Any]") -> None:
    """Retrieve an error that no caller awaits, so that asyncio does not report it."""
    if not answer.cancelled():
        answer.exception()


async def connect(
    *,
    urls: str | Sequence[str],
    name: str,
    on_event: Listener,
    creds_file: str = "",
    nkey_seed_file: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tls: ssl.SSLContext | None = None,
    handshake_first: bool = False,
    inbox_prefix: str = "_INBOX",
    domain: str = "",
    ignore_discovered: bool = False,
    connect_timeout_seconds: float = 10.0,
    ping_interval_seconds: float = 3.0,
) -> NatsConnection:
    """Connect, or fail within ``connect_timeout_seconds``.

    ``urls`` are ``nats://host:port`` without credentials; ``name`` shows in the server's list of connections;
    ``creds_file`` holds JWT and seed of a decentralised account, ``nkey_seed_file`` the seed of a user that
    the server knows by its public key; ``tls`` demands TLS, and where none is offered no secret is sent;
    ``handshake_first`` begins with TLS; ``inbox_prefix`` begins all reply subjects; ``domain`` is that of the
    JetStream; ``ignore_discovered`` keeps to ``urls``, whatever servers the cluster names; a dead peer is
    noticed after about three ping intervals.

    Raise BrokerUnavailableError if no server answers. Raise ContractError if all that answer refuse the
    credentials or the TLS handshake, if the server is too old, or if a file cannot be read.
    """
    servers = [urls] if isinstance(urls, str) else list(urls)
    where = ", ".join(url.rpartition("@")[2] for url in servers)
    if any("@" in url for url in servers):
        raise ContractError(f"{where}: credentials do not belong into the URL; set user, password or token")
    connection = NatsConnection(on_event, domain=domain, ignore_discovered=ignore_discovered)
    try:
        await connection.open(
            connect_timeout_seconds,
            servers=servers,
            name=name,
            user=user or None,
            password=password or None,
            token=token or None,
            user_credentials=creds_file or None,
            nkeys_seed=nkey_seed_file or None,
            tls=tls,
            tls_handshake_first=handshake_first,
            inbox_prefix=inbox_prefix,
            ping_interval=ping_interval_seconds,
        )
    except BaseException as error:
        await connection.close()
        if isinstance(error, Exception):
            raise connect_failed(error, where) from error
        raise
    on_event("connected", where)
    return connection


async def api(
    connection: NatsConnection,
    subject: str,
    payload: Mapping[str, Any] | None = None,
    *,
    timeout_seconds: float = 5.0,
) -> dict[str, Any]:
    """Send a request to the JetStream API and return the reply.

    Raise BrokerUnavailableError without a reply or leader and for a transient error, ApiRefusedError for a
    lasting one, and ContractError without the permission to send the request.
    """
    full = connection.api_subject(subject)
    if not connection.is_connected:
        raise BrokerUnavailableError(f"{full}: the connection is down")
    body = json.dumps(payload).encode() if payload is not None else b""
    try:
        answer = await connection.request(full, body, timeout_seconds=timeout_seconds)
    except nats.errors.NoRespondersError as error:
        elsewhere = connection.domain and (
            f", or no JetStream of the domain {connection.domain} (SEA_MQ_NATS_JETSTREAM_DOMAIN) is connected"
        )
        raise BrokerUnavailableError(
            f"{full}: JetStream is not enabled here{elsewhere}, or has no leader now"
        ) from error
    except (nats.errors.TimeoutError, TimeoutError) as error:
        raise BrokerUnavailableError(
            f"{full}: no answer within {timeout_seconds:g} s: no leader now, or the server is slow"
        ) from error
    except nats.errors.Error as error:
        raise BrokerUnavailableError(f"{full}: {plain(error)}") from error
    with reading(full):
        parsed: dict[str, Any] = json.loads(answer)
        if "error" in parsed:
            raise api_failed(full, parsed["error"])
    return parsed


@contextlib.contextmanager
def reading(subject: str) -> Iterator[None]:
    """Translate errors of reading an answer: one with other fields is not from JetStream's API."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BrokerUnavailableError(
            f"{subject}: the answer is not from JetStream's API ({type(error).__name__}: {error})"
        ) from error
