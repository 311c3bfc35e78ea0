"""The broker connection: it comes back by itself, or says that it never will; secrets stay unsaid."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from nats.aio.client import Server
from nats.aio.msg import Msg

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.connection import NatsConnection, api, connect
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.info import consumer_info, read_back, stream_info
from tests.faults.test_outbox_broker import configured
from tests.support.certificates import Authority
from tests.support.jetstream import connected
from tests.support.proxy import TcpProxy, proxied
from tests.support.waiting import eventually

SECRET = "canary-of-a-password"
NOWHERE = "nats://127.0.0.1:1"


async def refused(url: str, **given: Any) -> BaseException:
    """Try to connect; return the error, which must come in time and name no secret."""
    started = time.monotonic()
    with pytest.raises((BrokerUnavailableError, ContractError)) as caught:
        await connect(urls=url, name="test", on_event=lambda _event, _text: None, **given)
    assert time.monotonic() - started < 20.0
    assert SECRET not in str(caught.value)
    return caught.value


@asynccontextmanager
async def reporting(url: str | list[str], **given: Any) -> AsyncIterator[tuple[NatsConnection, list[str]]]:
    """Connect for the length of a block; give the names of its events, from the first one on."""
    reported: list[str] = []
    connection = await connect(
        urls=url, name="test", on_event=lambda event, _text: reported.append(event), **given
    )
    try:
        yield connection, reported
    finally:
        await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    """A server that asks for a password and lets its second user do next to nothing."""
    users = [
        {"user": "all", "password": SECRET},
        {"user": "few", "password": SECRET, "permissions": {"publish": "x.>", "subscribe": "_INBOX.>"}},
    ]
    config = {"authorization": {"users": users}}
    async with EmbeddedNats(tmp_path_factory.mktemp("guarded"), config=config) as server:
        yield server


async def test_a_server_that_is_away_or_silent_is_unavailable_within_the_timeout(nats_url: str) -> None:
    """P11: nats-py by itself would try for ever."""
    error = await refused(NOWHERE, connect_timeout_seconds=0.3)
    assert isinstance(error, BrokerUnavailableError)
    assert "127.0.0.1:1" in str(error)
    async with proxied(nats_url) as (proxy, url):
        proxy.stall()
        assert isinstance(await refused(url, connect_timeout_seconds=0.5), BrokerUnavailableError)


@pytest.mark.fault("P52")
async def test_tls_begins_before_the_servers_first_line_where_both_sides_say_so(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("nats", "127.0.0.1")
    files = {"cert_file": str(own.cert), "key_file": str(own.key), "timeout": 0.5}
    trust = {"tls": ssl.create_default_context(cafile=authority.ca), "connect_timeout_seconds": 5}
    async with EmbeddedNats(tmp_path / "first", config={"tls": {**files, "handshake_first": True}}) as first:
        async with connected(first.url, handshake_first=True, **trust) as connection:
            await api(connection, "INFO")
            await first.kill()
            await first.start()
            await eventually(lambda: connection.is_connected, within=10, what="it has connected again")
        error = await refused(first.url, **trust)
        assert isinstance(error, BrokerUnavailableError)
        assert "needs SEA_MQ_NATS_TLS_HANDSHAKE_FIRST=true" in str(error)
    async with EmbeddedNats(tmp_path / "later", config={"tls": files}) as later:
        error = await refused(later.url, handshake_first=True, **trust)
        assert "unset SEA_MQ_NATS_TLS_HANDSHAKE_FIRST" in str(error)


async def test_a_server_that_freezes_after_the_tls_handshake_is_unavailable_within_the_timeout(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("nats", "127.0.0.1")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate.cert, certificate.key)

    async def freeze(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.15.0","tls_required":true}\r\n')
        await writer.start_tls(theirs)
        while await reader.read(2**16):
            pass

    async with await asyncio.start_server(freeze, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ours = ssl.create_default_context(cafile=authority.ca)
        assert isinstance(await refused(url, tls=ours, connect_timeout_seconds=0.5), BrokerUnavailableError)


async def test_a_login_that_is_too_slow_is_tried_again_and_breaks_no_contract(tmp_path: Path) -> None:
    config = {"authorization": {"user": "u", "password": "p", "timeout": 0.2}}
    async with EmbeddedNats(tmp_path, config=config) as server, proxied(server.url) as (proxy, url):
        proxy.delay(0.5)
        user = {"user": "u", "password": "p"}
        assert isinstance(await refused(url, connect_timeout_seconds=3.0, **user), BrokerUnavailableError)
        proxy.heal()
        async with connected(url, **user) as connection:
            errors: list[str] = []
            connection.listen(lambda event, text: errors.append(f"{event} {text}"))
            proxy.delay(0.5)
            proxy.cut()
            await eventually(lambda: any("Timeout" in error for error in errors), what=f"refused: {errors}")
            proxy.heal()
            await eventually(lambda: connection.is_connected, what=f"it is back: {errors}")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"creds_file": "{folder}/no.creds"}, "no.creds"),
        ({"nkey_seed_file": "{folder}/no.nk"}, "no.nk"),
        ({"nkey_seed_file": "{folder}/broken.nk"}, "no usable nkey seed"),
        ({"user": "all", "password": SECRET, "tls": ssl.create_default_context()}, "TLS"),
        ({"urls": f"nats://user:{SECRET}@127.0.0.1:1"}, "credentials do not belong into the URL"),
    ],
)
async def test_what_cannot_log_in_safely_breaks_the_contract(
    given: dict[str, Any], named: str, guarded: EmbeddedNats, tmp_path: Path
) -> None:
    """S03: nats-py alone would fall back to plain text."""
    (tmp_path / "broken.nk").write_text(SECRET)
    options = {name: v.format(folder=tmp_path) if "_file" in name else v for name, v in given.items()}
    error = await refused(options.pop("urls", guarded.url), **options)
    assert isinstance(error, ContractError)
    assert named in str(error)


async def test_one_server_of_several_may_refuse(guarded: EmbeddedNats, nats_url: str) -> None:
    for _ in range(8):  # the order of the servers is random
        async with connected([guarded.url, nats_url], user="all", password="wrong") as connection:
            assert connection.is_connected


@pytest.mark.fault("S03")
async def test_nothing_is_sent_to_a_server_that_offers_no_tls_any_more(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("nats", "127.0.0.1")
    config: dict[str, Any] = {"tls": {"cert_file": str(own.cert), "key_file": str(own.key)}}
    ours = ssl.create_default_context(cafile=authority.ca)
    async with EmbeddedNats(tmp_path, config=config) as server, connected(server.url, tls=ours) as connection:
        await server.stop()
        del config["tls"]
        await server.start()
        await eventually(lambda: "no TLS is offered" in connection.trouble)
        assert not connection.is_connected


async def test_the_connection_recovers_by_itself_and_reports_each_change_but_its_close(nats_url: str) -> None:
    async with proxied(nats_url) as (proxy, url), reporting(url) as (connection, reported):
        later: list[str] = []
        connection.listen(_raise)
        connection.listen(lambda event, _text: later.append(event))
        proxy.refuse()
        await eventually(lambda: not connection.is_connected)
        with pytest.raises(BrokerUnavailableError):
            await asyncio.wait_for(api(connection, "INFO", timeout_seconds=60.0), 30.0)
        proxy.heal()
        await eventually(lambda: "reconnected" in reported)
        assert "account_info" in (await api(connection, "INFO"))["type"]
    assert [event for event in reported if event != "error"] == ["connected", "disconnected", "reconnected"]
    assert reported == ["connected", *later]


def _raise(_event: str, _text: str) -> None:
    raise RuntimeError


@pytest.mark.fault("P13")
async def test_a_server_that_froze_with_unsent_bytes_is_left_for_another_one(nats_url: str) -> None:
    reported: dict[str, str] = {}
    async with proxied(nats_url) as (one, url), proxied(nats_url) as (other, other_url):
        connection = await connect(
            urls=[url, other_url], name="test", on_event=reported.__setitem__, ping_interval_seconds=0.1
        )
        (one if one.requests else other).stall()
        for _ in range(16):
            await connection.client.publish("nowhere", bytes(1_000_000))
        await eventually(lambda: "reconnected" in reported)
        assert reported["disconnected"] == "nats: stale connection"
        await connection.close()


async def test_a_connection_closes_after_its_last_bytes_are_sent(nats_url: str) -> None:
    async with connected(nats_url) as connection:
        for _ in range(16):
            await connection.client.publish("nowhere", bytes(1_000_000))
        await connection.close()


async def test_closing_during_a_reconnect_does_not_cancel_the_caller(nats_url: str) -> None:
    async with connected(nats_url) as connection:
        await connection.client.force_reconnect()
        await asyncio.sleep(0)  # the reconnect now waits for the end of the old socket
        await connection.close()


@pytest.mark.fault("P12")
@pytest.mark.parametrize(
    ("error", "misled"),
    [
        *((b"Maximum Payload Violation", b""), (b"Slow Consumer", b""), (b"Parser Error", b"")),
        *((b"User Authentication Revoked", b""), (b"User Authentication Expired", b"")),
        *((b"Authorization Violation", b""), (b"Slow Consumer", b"[]")),
    ],
)
async def test_a_server_that_throws_a_client_out_is_asked_again(error: bytes, misled: bytes) -> None:
    """Also one whose next information cannot be understood."""
    async with _speaking(error, misled=misled) as url, reporting(url) as (_, reported):
        await eventually(lambda: "reconnected" in reported)
        assert reported.count("error") > bool(misled)


@asynccontextmanager
async def _speaking(*errors: bytes, version: bytes = b'"2.15.0"', misled: bytes = b"") -> AsyncIterator[str]:
    """Speak just enough of the protocol to accept a client, and to throw one out with each error.

    The first reconnect gets the information ``misled``, if given.
    """
    left = [b"-ERR '" + error + b"'\r\n" for error in errors]
    good = b'{"server_id":"x","version":%b,"max_payload":1048576,"headers":true}' % version
    infos = [good, misled or good]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO %b\r\n" % (infos.pop(0) if infos else good))
        while line := await reader.readline():
            if b"PING" in line:
                writer.write(b"PONG\r\n" + (left.pop() if left else b""))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_that_is_too_old_is_named_with_the_oldest_that_will_do() -> None:
    with pytest.raises(ContractError, match=r"nats-server 2\.9\.25 is too old .* 2\.10 or newer"):
        async with _speaking(version=b'"2.9.25"') as url, connected(url):
            pass


@pytest.mark.parametrize("version", [b'""', b'"v3"', b'"next"'])
async def test_a_server_whose_version_cannot_be_read_is_taken_for_the_oldest(version: bytes) -> None:
    async with _speaking(version=version) as url, connected(url) as connection:
        assert connection.server_version == (2, 10, 0)


async def test_each_reconnect_tells_anew_whether_answers_are_denied(tmp_path: Path) -> None:
    user = {"user": "u", "password": "p"}
    denied = user | {"permissions": {"subscribe": {"deny": ["_INBOX.>"]}}}
    config: dict[str, Any] = {"authorization": {"users": [denied]}}
    async with EmbeddedNats(tmp_path, config=config) as server, connected(server.url, **user) as connection:
        reported: list[str] = []
        connection.listen(lambda event, _text: reported.append(event))
        for connects in range(2):
            await eventually(lambda n=connects: reported.count("reconnected") == n)  # type: ignore[misc]
            with pytest.raises(ContractError, match="lets no answer through"):
                await api(connection, "INFO")
            await server.stop()
            config["authorization"] = {"users": [user if connects else denied]}
            await server.start()
        await eventually(lambda: connection.is_connected)
        assert await api(connection, "INFO")


async def test_answers_that_the_server_denied_for_a_while_arrive_again(tmp_path: Path) -> None:
    """The server forgets the subscription, and no word of it says that it would take another one."""
    user = {"user": "u", "password": "p"}
    denied = {"users": [user | {"permissions": {"subscribe": {"deny": ["_INBOX.>"]}}}]}
    config = {"authorization": {"users": [user]}}
    async with (
        EmbeddedNats(tmp_path, config=config) as server,
        connected(server.url, **user) as connection,
    ):
        assert await api(connection, "INFO")
        with configured(server, authorization=denied):
            await eventually(lambda: "_INBOX.>" in connection.trouble, what="it names the missing right")
            with pytest.raises(ContractError, match="lets no answer through"):
                await api(connection, "INFO")
            reported: list[str] = []
            connection.listen(lambda event, _text: reported.append(event))
            await eventually(lambda: reported.count("reconnected") == 2, what="it asks again and again")
        await eventually(lambda: connection.is_connected and not connection.trouble, within=15)
        assert await api(connection, "INFO")
        reported.clear()
        await api(connection, "INFO")
        assert reported == []


class Gossip(TcpProxy):
    """Names other servers of a cluster to its clients."""

    named: ClassVar[list[str]] = []

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        if not up:
            info = json.loads((await reader.readline()).removeprefix(b"INFO "))
            writer.write(b"INFO %b\r\n" % json.dumps(info | {"connect_urls": self.named}).encode())
        await super()._pump(reader, writer, up=up)


@pytest.fixture
async def silent_hosts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Three servers of a cluster that a network lets nobody reach."""
    async with AsyncExitStack() as stack:
        named = []
        for _ in range(3):
            host = await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", 0)
            await stack.enter_async_context(host)
            named.append(f"127.0.0.1:{host.sockets[0].getsockname()[1]}")
        monkeypatch.setattr(Gossip, "named", named)
        yield


@pytest.mark.parametrize("ignored", [False, True], ids=["known", "ignored"])
@pytest.mark.usefixtures("silent_hosts")
async def test_servers_that_a_cluster_names_and_nobody_reaches_keep_nobody_from_its_own(
    nats_url: str, ignored: bool
) -> None:
    async with (
        proxied(nats_url, kind=Gossip) as (proxy, url),
        connected(url, ignore_discovered=ignored) as connection,
    ):
        servers = [Server(uri=uri) for uri in connection.client.servers]
        order = [connection.next_server(servers, {})[0].uri.netloc for _ in range(8)]
        own = url.removeprefix("nats://")
        assert order[::2] == 4 * [own]
        assert set(order[1::2]) == ({own} if ignored else set(Gossip.named))
        refused = asyncio.Event()
        connection.listen(lambda event, _text: refused.set() if event == "error" else None)
        proxy.refuse()
        await refused.wait()
        proxy.heal()
        await eventually(lambda: connection.is_connected, within=1.8 if ignored else 4.0)


async def test_a_server_that_a_cluster_names_is_used_when_its_own_is_gone(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gossip, "named", [nats_url.removeprefix("nats://")])
    async with proxied(nats_url, kind=Gossip) as (proxy, url), connected(url) as connection:
        proxy.refuse()
        await eventually(lambda: not connection.is_connected)
        await eventually(lambda: connection.is_connected)
        assert await api(connection, "INFO")


# --- What the JetStream API answers, by what to do next.


async def test_a_missing_stream_is_reported_by_its_code(connection: NatsConnection) -> None:
    with pytest.raises(ApiRefusedError) as caught:
        await api(connection, "STREAM.INFO.NOWHERE")
    assert (caught.value.code, caught.value.err_code) == (404, 10059)


async def test_a_forbidden_request_is_reported(guarded: EmbeddedNats) -> None:
    """A denial comes as silence and, beside it, an error of its own."""
    async with connected(guarded.url, user="few", password=SECRET) as connection:
        with pytest.raises(ContractError, match="permission"):
            await api(connection, "STREAM.INFO.ANY", timeout_seconds=0.3)


@pytest.mark.fault("P45")
@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"not JSON", b"[" * 100_000, b"[]", b"{}", b'{"error": "text"}', b'{"message": {}}'),
        b'{"message": {"seq": 1, "subject": "a", "time": "now"}}',
    ],
)
async def test_an_answer_of_somebody_else_is_unavailability(
    connection: NatsConnection, names: str, answer: bytes
) -> None:
    async def reply(message: Msg) -> None:
        await message.respond(answer)

    await connection.client.subscribe(f"$JS.API.STREAM.MSG.GET.{names}.own", cb=reply)
    with pytest.raises(BrokerUnavailableError, match="the answer"):
        await read_back(connection, f"{names}.own", "", 1)


@pytest.mark.parametrize("state", ["{}", "[]", '{"messages": "many"}'])
async def test_information_without_its_fields_is_unavailability(
    connection: NatsConnection, names: str, state: str
) -> None:
    async def reply(message: Msg) -> None:
        await message.respond(f'{{"config": {{}}, "state": {state}, "created": "now"}}'.encode())

    for subject in (f"STREAM.INFO.{names}.own", f"CONSUMER.INFO.{names}.own.own"):
        await connection.client.subscribe(f"$JS.API.{subject}", cb=reply)
    with pytest.raises(BrokerUnavailableError, match="the answer"):
        await stream_info(connection, f"{names}.own")
    with pytest.raises(BrokerUnavailableError, match="the answer"):
        await consumer_info(connection, names, "own.own")
