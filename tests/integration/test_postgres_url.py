"""Every parameter that libraries and hosting providers write into a URL has its meaning on a real server."""

import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import ContractError
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.url import RULES
from sea_mq_worker.settings import Settings, SettingsError, load_settings
from tests.support.certificates import Authority, postgres_tls
from tests.support.servers import Database

VALUES = {
    "sslmode": ("disable", "prefer", "PREFER", "allow"),
    "ssl-mode": ("disable",),
    "options": ("-c%20work_mem%3D3MB",),
    "target_session_attrs": ("any", "read-write", "primary"),
    "targetservertype": ("primary", "master", "any"),
    "ssl": ("false", "0", "prefer"),
    "sslaccept": ("accept_invalid_certs",),
    "direct_tls": ("false",),
    "ssl_min_protocol_version": ("TLSv1.2",),
    "ssl_max_protocol_version": ("TLSv1.3",),
    "sslnegotiation": ("postgres",),
    "pgbouncer": ("true", "false"),
    "client_encoding": ("utf8", "UTF-8", "auto"),
    "encoding": ("utf8",),
    "charset": ("utf8",),
    "replication": ("false", "off"),
    "channel_binding": ("prefer", "disable"),
    "channelbinding": ("prefer",),
    "gssencmode": ("prefer", "disable", "allow"),
    "gssdelegation": ("0",),
    "sslcertmode": ("allow",),
    "min_protocol_version": ("3.0",),
    "gsslib": ("gssapi",),
    "schema": ("orders",),
    "currentschema": ("orders,public",),
}
"""Values that a URL may have, where any other would not do."""

OF_THE_LOGIN = {"host", "port", "user", "password", "dbname", "database", "unix_sock", "service"}
OF_FILES = {
    *("sslcert", "sslkey", "sslcrl", "sslpassword", "sslrootcert", "passfile"),
    *("ssl-root-cert", "ssl-ca", "ssl-cert", "ssl-key"),
}
REFUSED = [name for name, rule in RULES.items() if rule.values == {}]
TAKEN = [
    f"{name}={value}"
    for name in RULES
    if name not in {*OF_THE_LOGIN, *OF_FILES, *REFUSED}
    for value in VALUES.get(name, ("1",))
]
DEMANDS = [
    *("channel_binding=require", "replication=database", "gssencmode=require", "gssdelegation=1"),
    *("target_session_attrs=standby", "target_session_attrs=prefer-standby", "targetServerType=secondary"),
    *("client_encoding=LATIN1", "min_protocol_version=3.2", "sslcertmode=require"),
    *("sslmode=maybe", "ssl=maybe", "sslnegotiation=direct", "direct_tls=true"),
    *("sslrootcert=system&sslmode=require", "ssl=true&sslmode=disable"),
    *(f"{name}={value}" for name in REFUSED for value in ("x", "")),
]


def given(url: str, **others: object) -> Settings:
    return Settings.model_validate({"database_url": url, **others})


def refusal(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", url)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    return str(refused.value)


@pytest.mark.fault("D25")
@pytest.mark.parametrize("spelling", [str, str.upper], ids=["as listed", "in capitals"])
async def test_a_server_accepts_sessions_whatever_known_parameter_the_url_has(
    spelling: Callable[[str], str], database: Database
) -> None:
    for parameter in TAKEN:
        name, _, value = parameter.partition("=")
        settings = given(f"{database.dsn}?{spelling(name)}={value}")
        pool = await open_pool(settings, purpose="test")
        [row] = await fetch(pool, "SELECT current_setting('work_mem') AS work_mem")
        assert row["work_mem"] == ("3MB" if "work_mem" in parameter else "4MB")
        assert settings.database_pooler is (parameter == "pgbouncer=true")
        assert settings.database_schema == ("orders" if "schema" in name else "public")
        await pool.close()


@pytest.mark.fault("D25")
@pytest.mark.parametrize("parameter", DEMANDS)
def test_a_parameter_that_cannot_be_honoured_is_refused_by_its_name(
    parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refusal(monkeypatch, f"postgresql://u:s3cret@h/d?{parameter}")
    name = "sslnegotiation" if "direct" in parameter else "sslmode" if "&" in parameter else parameter
    assert name.partition("=")[0] in said
    assert said.startswith("SEA_MQ_DATABASE_URL: ")
    assert "s3cret" not in said


async def test_parts_of_the_login_may_be_parameters(database: Database) -> None:
    address = urlsplit(database.dsn)
    login = f"user={address.username}&password={address.password or ''}"
    for where in (
        f"host={address.hostname}&port={address.port}&dbname={database.name}",
        f"host={address.hostname}:{address.port}&database={database.name}",
    ):
        pool = await open_pool(given(f"postgresql+asyncpg://?{login}&{where}"), purpose="test")
        [row] = await fetch(pool, "SELECT current_database() AS name")
        assert row["name"] == database.name
        await pool.close()


def test_the_socket_of_a_cloud_is_a_host() -> None:
    for parameter in ("host=/cloudsql/a:b:c", "unix_sock=/cloudsql/a:b:c/.s.PGSQL.5432"):
        url = given(f"postgres+pg8000://u:p@/d?{parameter}").database_url.get_secret_value()
        assert url == "postgres://u:p@/d?host=/cloudsql/a%3Ab%3Ac"


@pytest.mark.parametrize(
    ("parameters", "verifies"),
    [
        *(("ssl=true", False), ("ssl=require", False), ("ssl", False), ("sslmode=no-verify", False)),
        *(("ssl=true&sslmode=verify-full&ssl-ca={ca}", True), ("sslaccept=strict&sslrootcert={ca}", True)),
        *(("sslrootcert=system", True), ("sslmode=verify-full&sslrootcert=system", True)),
        ("ssl=true&sslcert={cert}&ssl-key={key}&sslmode=require", False),
    ],
)
async def test_tls_is_demanded_and_the_server_verified_as_the_url_says(
    parameters: str, *, verifies: bool, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    client = authority.issue("sea")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    query = parameters.format(ca=authority.ca, cert=client.cert, key=client.key)
    verify = ssl.CERT_OPTIONAL if "cert=" in parameters and "key" in parameters else ssl.CERT_NONE
    trusted = authority.for_servers(authority.issue("server", "127.0.0.1"), verify_clients=verify)
    async with postgres_tls(database.dsn, trusted) as dsn:
        await (await open_pool(given(f"{dsn}?{query}"), purpose="test")).close()
    async with postgres_tls(database.dsn, None) as dsn:
        with pytest.raises(ContractError, match="offers no TLS"):
            await open_pool(given(f"{dsn}?{query}"), purpose="test")
    strange = stranger.for_servers(stranger.issue("strange", "127.0.0.1"), verify_clients=ssl.CERT_NONE)
    async with postgres_tls(database.dsn, strange) as dsn:
        if verifies:
            with pytest.raises(ContractError, match="TLS was refused"):
                await open_pool(given(f"{dsn}?{query}"), purpose="test")
        else:
            await (await open_pool(given(f"{dsn}?{query}"), purpose="test")).close()


def test_what_a_url_says_about_schema_and_pooler_yields_to_the_settings() -> None:
    url = "postgresql://h/d?schema=orders&pgbouncer=true"
    found = given(url, database_schema="outbox", database_pooler=False)
    assert (found.database_schema, found.database_pooler) == ("outbox", False)


def test_an_unknown_parameter_and_other_kinds_of_urls_are_refused_without_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "sslmod is no parameter" in refusal(monkeypatch, "postgresql://h/d?sslmod=s3cret")
    assert "one parameter is no" in refusal(monkeypatch, "postgresql://h/d?s3cret%2F=1")
    assert "is given twice" in refusal(monkeypatch, "postgresql://h/d?sslmode=require&sslmode=disable")
    said = refusal(monkeypatch, "jdbc:postgresql://h/d?user=u&password=s3cret")
    assert "is a URL of JDBC; write postgresql://" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("variable", ["PGCHANNELBINDING", "PGGSSENCMODE", "PGREQUIREAUTH"])
def test_a_demand_of_the_environment_is_refused_by_name(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "require")
    assert refusal(monkeypatch, "postgresql://h/d").startswith(f"{variable}: ")


@pytest.mark.fault("D25")
@pytest.mark.parametrize("options", ["-c max_connections=5", "-c statement_timeout=x", "-c nothing=1", "--x"])
async def test_options_that_the_server_refuses_end_the_wait_at_once(options: str, database: Database) -> None:
    url = f"{database.dsn}?options={options.replace(' ', '%20')}"
    with pytest.raises(ContractError, match="correct the options in SEA_MQ_DATABASE_URL"):
        await open_pool(given(url), purpose="test")
