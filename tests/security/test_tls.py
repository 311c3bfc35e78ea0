"""TLS and mutual TLS to all three sides: trusted only if it can be, and told in one line if not."""

import re
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from sea_mq_worker.connections import nats_tls as demanded
from sea_mq_worker.connections import open_handler, open_nats, open_pool
from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.doctor.services import handler_findings
from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.inbox.message import Accepted, HandlerRequest, NotDelivered, parse_message
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.producer import enqueue
from sea_mq_worker.settings import Settings, SettingsError
from tests.support.builders import enqueueable, inbound_message
from tests.support.certificates import Authority, Certificate, encrypted, postgres_tls
from tests.support.handlers import handler_server
from tests.support.jetstream import connected, store
from tests.support.servers import Database
from tests.support.site import FAST, Effects
from tests.support.waiting import eventually
from tests.support.worker import apply_streams, deployment, running

HOSTS = ("127.0.0.1", "localhost")
PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"
UNTRUSTED = {
    "wrong authority": "unable to get local issuer certificate|unknown ca|self.signed",
    "wrong host": "IP address mismatch|not valid for '127.0.0.1'",
    "expired": "certificate has expired",
}


class Pki:
    """An authority, what it signed, and what it should not be taken for."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue("server", *HOSTS)
        self.client = self.authority.issue("sea")
        self.stranger = Authority(folder, "stranger")
        self.bad = {
            "wrong authority": self.stranger.issue("strange", *HOSTS),
            "wrong host": self.authority.issue("other", "other.example"),
            "expired": self.authority.issue("old", *HOSTS, expired=True),
        }
        self.strange = {
            "a stranger's of its own": self.bad["wrong authority"],
            "an expired one of its own": self.bad["expired"],
        }

    def mutual(self) -> ssl.SSLContext:
        """Return the context of a client with a certificate."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        context.load_cert_chain(self.client.cert, self.client.key)
        return context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def nats_tls(own: Certificate, authority: Authority, *, verify: bool) -> dict[str, Any]:
    files = {"cert_file": str(own.cert), "key_file": str(own.key), "ca_file": str(authority.ca)}
    return {"tls": {**files, "verify": verify}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    """A nats-server that lets only clients with a certificate in."""
    config = nats_tls(pki.server, pki.authority, verify=True)
    async with EmbeddedNats(tmp_path_factory.mktemp("nats"), config=config) as server:
        yield server


def verified(dsn: str, pki: Pki, *, client: Certificate | None = None) -> str:
    query = f"?sslmode=verify-full&sslrootcert={pki.authority.ca}"
    return dsn + query + (f"&sslcert={client.cert}&sslkey={client.key}" if client else "")


def settings(**given: object) -> Settings:
    secret = {"database_url", "nats_url"}
    values: dict[str, Any] = {
        key: SecretStr(str(value)) if key in secret else value for key, value in given.items()
    }
    return Settings(**values)


@pytest.mark.fault("S03")
@pytest.mark.fault("S09")
async def test_the_worker_runs_with_mutual_tls_on_all_three_sides(
    *, pki: Pki, broker: EmbeddedNats, database: Database, names: str, tmp_path: Path
) -> None:
    files = {"ca": pki.authority.ca, "cert": pki.client.cert, "key": pki.client.key}
    effects = Effects()
    inward = pki.authority.for_servers(pki.server, verify_clients=ssl.CERT_REQUIRED)
    async with (
        postgres_tls(database.dsn, inward) as dsn,
        handler_server(effects.take, tls=inward) as handler,
        connected(broker.url, tls=pki.mutual()) as own,
    ):
        url = f"https://localhost:{handler.port}/handle"
        tls = {f"{side}_tls_{part}_file": files[part] for side in ("nats", "handler") for part in files}
        target = deployment(
            context=names,
            database_url=verified(dsn, pki, client=pki.client),
            nats_url=broker.url.replace("nats://", "tls://"),
            handler_url=url,
            **{**FAST, "handler_timeout_seconds": 5},
            **tls,
        )
        await apply_streams(target, tmp_path / "streams")
        message_id = str(uuid.uuid4())
        await store(own, f"{target.upstream}.event.made.v1", b"{}", headers={"Nats-Msg-Id": message_id})
        direct = await asyncpg.connect(database.dsn)
        async with direct.transaction():
            await enqueue(direct, enqueueable())
        async with running(target, tmp_path / "log") as worker:
            await worker.ready()
            await eventually(lambda: effects.taken == {message_id: 1}, within=20)
            await eventually(lambda: direct.fetchval(PUBLISHED), within=20, what="the event is published")
            assert not {"plaintext_connection", "secret_file_exposed"} & set(worker.events())
        await direct.close()
        assert [finding async for finding in handler_findings(settings(handler_url=url, **tls))] == []


@asynccontextmanager
async def postgres_with(kind: str, pki: Pki, database: Database) -> AsyncIterator[str]:
    """Give the verifying DSN of a PostgreSQL that should not be trusted, or that wants more."""
    verify = ssl.CERT_OPTIONAL if kind == "no certificate of its own" else ssl.CERT_NONE
    context = pki.authority.for_servers(pki.bad.get(kind, pki.server), verify_clients=verify)
    async with postgres_tls(database.dsn, None if kind == "no TLS" else context) as dsn:
        yield verified(dsn, pki)


POSTGRES = {
    **UNTRUSTED,
    "no TLS": "offers no TLS, although sslmode in SEA_MQ_DATABASE_URL demands it",
    "no certificate of its own": "requires a valid client certificate",
}


@pytest.mark.fault("S03")
@pytest.mark.parametrize("kind", POSTGRES)
async def test_postgresql_that_cannot_be_trusted_breaks_the_contract(
    kind: str, pki: Pki, database: Database
) -> None:
    async with postgres_with(kind, pki, database) as dsn:
        with pytest.raises(ContractError, match=POSTGRES[kind]) as refused:
            await open_pool(settings(database_url=dsn), purpose="test")
    assert "\n" not in str(refused.value)


@pytest.mark.fault("S03")
@pytest.mark.parametrize("alert", ["TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE_EXPIRED"])
def test_postgresqls_refusal_of_the_own_certificate_breaks_the_contract(alert: str) -> None:
    """It comes behind the handshake; asyncpg tells of a lost connection, with the alert as the cause."""
    cause = ssl.SSLError(1, alert)
    cause.reason = alert
    lost = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
    with pytest.raises(ContractError, match=f"own certificate .{alert}"), translated():
        raise lost from cause
    cause.reason = "SSLV3_ALERT_BAD_RECORD_MAC"
    with pytest.raises(StoreUnavailableError), translated():
        raise lost from cause


@pytest.mark.fault("S03")
async def test_the_files_that_a_dsn_names_are_named_when_they_are_missing(tmp_path: Path) -> None:
    for key in ("sslrootcert", "sslcert", "sslkey"):
        missing = f"{tmp_path}/no-{key}"
        dsn = f"postgresql://127.0.0.1:1/x?sslmode=verify-full&{key}={missing}"
        with pytest.raises(ContractError, match=f"cannot read {missing}"):
            await open_pool(settings(database_url=dsn), purpose="test")


NATS = {
    **UNTRUSTED,
    "no TLS": "no TLS is offered, although it is demanded",
    "no certificate of its own": "TLS was refused .*certificate",
    "a stranger's of its own": "TLS was refused .*unknown ca",
    "an expired one of its own": "TLS was refused .*certificate expired",
}


@pytest.mark.fault("S03")
@pytest.mark.parametrize("kind", NATS)
async def test_a_broker_that_cannot_be_trusted_breaks_the_contract(
    kind: str, pki: Pki, broker: EmbeddedNats, tmp_path: Path
) -> None:
    """TLS is demanded by the CA's file alone, too: the URL may say nats://."""
    config = {} if kind == "no TLS" else nats_tls(pki.bad.get(kind, pki.server), pki.authority, verify=False)
    async with EmbeddedNats(tmp_path, config=config) as other:
        own = pki.strange.get(kind)
        files = {"nats_tls_cert_file": own.cert, "nats_tls_key_file": own.key} if own else {}
        where = broker.url if "of its own" in kind else other.url
        given = settings(nats_url=where, nats_tls_ca_file=pki.authority.ca, **files)
        with pytest.raises(ContractError, match=NATS[kind]) as refused:
            await open_nats(given, purpose="test", on_event=lambda _event, _text: None)
    assert "\n" not in str(refused.value)


@pytest.mark.fault("S03")
@pytest.mark.fault("S09")
@pytest.mark.parametrize("kind", [*UNTRUSTED, "no certificate of its own"])
async def test_a_handler_that_cannot_be_trusted_gets_nothing_and_is_reported_by_doctor(
    kind: str, pki: Pki
) -> None:
    verify = ssl.CERT_REQUIRED if kind == "no certificate of its own" else ssl.CERT_NONE
    context = pki.authority.for_servers(pki.bad.get(kind, pki.server), verify_clients=verify)
    envelope = parse_message(inbound_message())
    assert isinstance(envelope, HandlerRequest)
    async with handler_server(tls=context) as server:
        url = f"https://127.0.0.1:{server.port}/handle"
        given = settings(handler_url=url, handler_tls_ca_file=pki.authority.ca)
        client = open_handler(given, concurrency=1)
        result = await client.handle_request(envelope)
        await client.close()
        found = [(finding.slug, finding.what) async for finding in handler_findings(given)]
    assert not isinstance(result, Accepted)
    assert server.calls == []
    if kind in UNTRUSTED:
        assert isinstance(result, NotDelivered)
        assert re.search(UNTRUSTED[kind], result.error)
        [(slug, what)] = found
        assert (slug, re.search(UNTRUSTED[kind], what) is None) == ("handler_unreachable", False)


@pytest.mark.fault("S03")
@pytest.mark.parametrize("side", ["nats", "handler"])
def test_tls_files_that_cannot_be_used_are_wrong_settings(side: str, pki: Pki, tmp_path: Path) -> None:
    use: Callable[[Settings], object] = demanded if side == "nats" else partial(open_handler, concurrency=1)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    locked = Certificate(pki.client.cert, tmp_path / "locked.key")
    locked.key.write_bytes(encrypted(pki.client.key))
    for files in (
        {"ca": tmp_path / "missing"},
        {"ca": garbage},
        {"cert": garbage, "key": garbage},
        {"cert": pki.client.cert, "key": pki.server.key},
        {"cert": locked.cert, "key": locked.key},
    ):
        named = {f"{side}_tls_{part}_file": path for part, path in files.items()}
        given = settings(nats_url="tls://127.0.0.1:1", handler_url="https://127.0.0.1:1/", **named)
        with pytest.raises(SettingsError, match=f"SEA_MQ_{side.upper()}_TLS_CA_FILE, _CERT_FILE or _KEY"):
            use(given)
