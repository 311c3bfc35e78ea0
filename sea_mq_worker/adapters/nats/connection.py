"""One connection to the broker, which reconnects without limit.

nats-py loses its read loop when a callback raises, and buffers what is published while the connection is
down. So callbacks here never raise, and callers check ``is_connected`` before they send.
"""

import asyncio
import contextlib
import json
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import nats.errors
from nats.aio.client import Server

from sea_mq_worker.adapters.nats.client import ResilientClient
from sea_mq_worker.adapters.nats.errors import (
    NO_HANDSHAKE_FIRST,
    PublishDeniedError,
    api_failed,
    connect_failed,
    is_refusal,
    plain,
)
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError

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
    """One nats-py client, shared by publishers and consumers.

    Attributes:
        client: for publish and subscribe.
        domain: of the JetStream to use; empty for the connected server's own.
        refused: has an error once the first connect was refused as often as there are servers.
        replies_denied: the server forwards no reply to this connection, so no request has an answer. It has
            dropped the subscriptions and takes others once the user may subscribe again, which it does not
            report. So the connection is renewed, again and again.
        last_error: the latest one that nats-py reported.
    """

    def __init__(
        self,
        on_event: Listener,
        *,
        domain: str = "",
        ignore_discovered: bool = False,
    ) -> None:
        self.domain = domain
        self.client = ResilientClient()
        self.refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.last_error: Exception = TimeoutError("no answer")
        self._ignore_discovered = ignore_discovered
        self._round: list[str] = []
        self._rounds = 0
        self._tried_at: dict[str, float] = {}
        self._listeners: list[Listener] = [on_event]
        self.replies_denied = False
        self._denials = 0
        self._pending_requests: dict[asyncio.Future[str], str] = {}
        self._refused_at: float | None = None
        self._refusals = 0
        self._closing = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket to send a message to."""
        return self.client.is_connected

    @property
    def trouble(self) -> str:
        """Why the connection is down, with the fix if the server refuses it; empty while it is up."""
        if self.is_connected:
            return self._denial if self.replies_denied else ""
        reason = plain(self.last_error)
        if is_refusal(self.last_error):
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
        """Return the full subject of a request to the JetStream API."""
        return f"$JS.{self.domain}.API.{subject}" if self.domain else f"$JS.API.{subject}"

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at every later event; it must return quickly."""
        self._listeners.append(listener)

    async def request(self, subject: str, body: bytes, *, timeout_seconds: float) -> bytes:
        """Send a request and return the body of its reply; a permission error is raised at once.

        Raises:
            ContractError: the worker has no permission to send the request, or to receive replies.
            nats.errors.Error: as nats-py.
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
        """Raise if the server denies the subscriptions that receive replies.

        Raises:
            ContractError: it does.
        """
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
        """Call every listener with an event."""
        for listener in self._listeners:
            with contextlib.suppress(Exception):
                listener(event, text)

    async def on_error(self, error: Exception) -> None:
        if error is self.last_error:
            return None  # nats-py reports some errors twice
        self.last_error = error
        if not is_refusal(error):
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = asyncio.get_running_loop().time()
        self._refusals += is_refusal(error)
        if self._refusals >= len(self.client.servers) and not self.refused.done():
            self.refused.set_result(error)
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

    def note_attempt(self) -> None:
        """Note that the connected server was just tried: it is not tried again at once."""
        if (uri := self.client.connected_url) is not None:
            self._tried_at[uri.netloc] = asyncio.get_running_loop().time()

    async def on_disconnected(self) -> None:
        self._round = []
        self.replies_denied = False  # a reconnect tells it anew, before it is complete
        if not self._closing:
            self.emit("disconnected", plain(self.last_error))

    async def on_reconnected(self) -> None:
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
    """Return the request without its prefix: an account may map another account's API to its own prefix."""
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

    Raises:
        BrokerUnavailableError: no server answers.
        ContractError: all servers that answer refuse the credentials or the TLS handshake, or the server is
            too old, or a file cannot be read.
    """
    servers = [urls] if isinstance(urls, str) else list(urls)
    where = _without_secrets(servers)
    connection = NatsConnection(on_event, domain=domain, ignore_discovered=ignore_discovered)
    if handshake_first:
        connection.last_error = TimeoutError(f"no answer; {NO_HANDSHAKE_FIRST}")
    try:
        await _first_connect(
            connection,
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


def _check_version(connection: NatsConnection) -> None:
    found = connection.server_version
    if found < _SERVER_MIN:
        texts = [".".join(map(str, version)) for version in (found, _SERVER_MIN)]
        raise ContractError(f"nats-server {texts[0]} is too old for the worker; it needs {texts[1]} or newer")


def _without_secrets(servers: Sequence[str]) -> str:
    where = ", ".join(url.rpartition("@")[2] for url in servers)
    if any("@" in url for url in servers):
        raise ContractError(f"{where}: credentials do not belong into the URL; set user, password or token")
    return where


async def _first_connect(connection: NatsConnection, timeout_seconds: float, **options: Any) -> None:
    """Limit the first connect: with unlimited reconnects nats-py never ends it."""
    attempt: asyncio.Future[Any] = asyncio.ensure_future(
        connection.client.connect(
            connect_timeout=cast("int", min(timeout_seconds, _HANDSHAKE_SECONDS_MAX)),
            max_outstanding_pings=_PINGS_UNANSWERED_MAX,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_WAIT_SECONDS,
            pending_size=PENDING_BYTES_MAX,
            flush_timeout=timeout_seconds,
            error_cb=connection.on_error,
            disconnected_cb=connection.on_disconnected,
            reconnected_cb=connection.on_reconnected,
            reconnect_to_server_handler=connection.next_server,
            **options,
        )
    )
    either: set[asyncio.Future[Any]] = {attempt, connection.refused}
    try:
        await asyncio.wait(either, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not attempt.done():
            raise connection.refused.result() if connection.refused.done() else connection.last_error
        attempt.result()
        connection.note_attempt()
        _check_version(connection)
    finally:
        while not attempt.done():  # a time limit inside that ends at the same moment swallows a cancellation
            attempt.cancel()
            await asyncio.wait({attempt}, timeout=_CLOSE_SECONDS_MAX)
        _ignore_error(attempt)


async def api(
    connection: NatsConnection,
    subject: str,
    payload: Mapping[str, Any] | None = None,
    *,
    timeout_seconds: float = 5.0,
) -> dict[str, Any]:
    """Send a request to the JetStream API and return the reply.

    Raises:
        BrokerUnavailableError: no reply, no leader, or a transient error.
        ApiRefusedError: a lasting error; ``code`` is 404 if the stream, consumer or message does not exist.
        ContractError: the worker has no permission to send the request.
    """
    full = connection.api_subject(subject)
    if not connection.is_connected:
        raise BrokerUnavailableError(f"{full}: the connection is down")
    body = json.dumps(payload).encode() if payload is not None else b""
    try:
        answer = await connection.request(full, body, timeout_seconds=timeout_seconds)
    except nats.errors.NoRespondersError as error:
        raise BrokerUnavailableError(
            f"{full}: JetStream is not enabled here{_of_domain(connection)}, or has no leader now"
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


def _of_domain(connection: NatsConnection) -> str:
    if not connection.domain:
        return ""
    return f", or no JetStream of the domain {connection.domain} (SEA_MQ_NATS_JETSTREAM_DOMAIN) is connected"


@contextlib.contextmanager
def reading(subject: str) -> Iterator[None]:
    """Translate errors of reading an answer: one with other fields is not from JetStream's API."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BrokerUnavailableError(
            f"{subject}: the answer is not from JetStream's API ({type(error).__name__}: {error})"
        ) from error
