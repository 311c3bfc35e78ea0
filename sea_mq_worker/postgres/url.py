"""The parameters of a PostgreSQL URL: each is honoured, translated, ignored on purpose, or refused by name.

Libraries and hosting providers write their own parameters into URLs. A driver passes what it does not know to
the server, which then refuses every session. So a URL gets one form here, which all drivers understand alike.
"""

import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from sea_mq_worker.runtime.addresses import postgres_problem, split_password_file, with_password_file

Effect: TypeAlias = Literal["honoured", "translated", "ignored", "refused"]

_ENCRYPTING = ("require", "verify-ca", "verify-full")
_MODES = ("disable", "allow", "prefer", *_ENCRYPTING)
_ON = ("true", "1", "on", "yes", "t")
_OFF = ("false", "0", "off", "no", "f")
_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_PRIMARY = ("any", "read-write", "primary", "master")
_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep their authorities in one file, if OpenSSL's own default names none."""


class Rule(NamedTuple):
    """How the worker treats some parameters.

    Attributes:
        names: as a URL has them; their case does not matter.
        text: the meaning, or the reason; after a refusal the fix.
        values: the only values to honour or ignore, in any case; every other one is refused. None: all.
    """

    names: tuple[str, ...]
    effect: Effect
    text: str
    values: tuple[str, ...] | None = None


def _rule(names: str, effect: Effect, text: str, values: tuple[str, ...] | None = None) -> Rule:
    return Rule(tuple(names.split()), effect, text, values)


RULES: tuple[Rule, ...] = (
    _rule("host port user password dbname", "honoured", "instead of the parts before the `?`"),
    _rule("passfile service krbsrvname gsslib", "honoured", "as libpq does"),
    _rule("options", "honoured", "settings of the session, as `options=-c%20work_mem%3D64MB`"),
    _rule("sslmode", "honoured", "TLS of the connection", (*_MODES, "no-verify")),
    _rule("sslcert sslkey sslcrl sslpassword", "honoured", "files of TLS"),
    _rule("sslrootcert", "honoured", "CA; `system`: the system's authorities, with `sslmode=verify-full`"),
    _rule("ssl_min_protocol_version ssl_max_protocol_version", "honoured", "versions of TLS", _TLS_VERSIONS),
    _rule("sslnegotiation", "honoured", "`direct` starts with TLS", ("postgres", "direct")),
    _rule(
        "target_session_attrs targetServerType",
        "ignored",
        "the worker connects to the primary; name it, and no standby alone",
        _PRIMARY,
    ),
    _rule("database", "translated", "`dbname`"),
    _rule("unix_sock", "translated", "`host`, the folder of the socket"),
    _rule("ssl", "translated", "true or require: `sslmode=require`; false: `sslmode=disable`"),
    _rule("ssl-mode", "translated", "`sslmode`", (*_MODES, "no-verify")),
    _rule("ssl-root-cert ssl-ca", "translated", "`sslrootcert`"),
    _rule("ssl-cert", "translated", "`sslcert`"),
    _rule("ssl-key", "translated", "`sslkey`"),
    _rule("sslaccept", "translated", "strict: `sslmode=verify-full`; accept_invalid_certs: nothing"),
    _rule("direct_tls", "translated", "true: `sslnegotiation=direct`"),
    _rule("schema currentSchema", "translated", "`SEA_MQ_DATABASE_SCHEMA`, unless that is set"),
    _rule("pgbouncer", "translated", "true: `SEA_MQ_DATABASE_POOLER=true`, unless that is set"),
    _rule("search_path", "ignored", "`SEA_MQ_DATABASE_SCHEMA` names the schema"),
    _rule("application_name ApplicationName fallback_application_name", "ignored", "sessions have own names"),
    _rule(
        "connect_timeout connectTimeout loginTimeout socketTimeout timeout command_timeout"
        " statement_timeout lock_timeout idle_in_transaction_session_timeout",
        "ignored",
        "`SEA_MQ_DATABASE_TIMEOUT_SECONDS` limits a statement, and 10 s an attempt to connect",
    ),
    _rule(
        "keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout tcpKeepAlive",
        "ignored",
        "the worker sets its own",
    ),
    _rule(
        "connection_limit pool_timeout pool pool_size max_overflow pool_recycle pool_pre_ping min_size"
        " max_size pool_max_conns pool_min_conns pool_max_conn_lifetime pool_max_conn_idle_time"
        " pool_health_check_period socket_timeout max_idle_connection_lifetime checkout_timeout"
        " conn_max_age conn_health_checks",
        "ignored",
        "`SEA_MQ_DATABASE_POOL_MAX` limits the pools",
    ),
    _rule(
        "statement_cache_size prepared_statement_cache_size statement_cache_capacity statement-cache-capacity"
        " description_cache_capacity max_cached_statement_lifetime max_cacheable_statement_size"
        " prepareThreshold prepare_threshold preparedStatementCacheQueries preparedStatementCacheSizeMiB"
        " prepared_statements default_query_exec_mode binary_parameters binaryTransfer preferQueryMode",
        "ignored",
        "`SEA_MQ_DATABASE_POOLER` decides about prepared statements",
    ),
    _rule(
        "reWriteBatchedInserts defaultRowFetchSize stringtype autosave assumeMinServerVersion autocommit"
        " async_fallback hostRecheckSeconds loadBalanceHosts load_balance_hosts supa workaround"
        " uselibpqcompat sslcompression sslsni sslkeylogfile TimeZone",
        "ignored",
        "no effect on the worker",
    ),
    _rule(
        "client_encoding encoding charset", "ignored", "the worker speaks UTF-8", ("utf8", "utf-8", "auto")
    ),
    _rule("replication", "ignored", "the worker needs no replication connection", _OFF),
    _rule(
        "channel_binding channelBinding",
        "ignored",
        "the driver has none; `sslmode=verify-full&sslrootcert=system` authenticates the server",
        ("prefer", "disable", "allow"),
    ),
    _rule(
        "gssencmode gssEncMode", "ignored", "the driver has no GSS encryption", ("prefer", "disable", "allow")
    ),
    _rule("gssdelegation", "ignored", "the driver delegates no credentials", _OFF),
    _rule("sslcertmode", "ignored", "sslcert decides", ("allow",)),
    _rule("min_protocol_version", "ignored", "the driver speaks version 3.0", ("3.0",)),
    _rule("max_protocol_version", "ignored", "the driver speaks version 3.0"),
    _rule("hostaddr", "refused", "write the address as the host"),
    _rule("servicefile", "refused", "name the file in PGSERVICEFILE"),
    _rule("sslcrldir", "refused", "name one file by sslcrl"),
    _rule("sslidentity", "refused", "write PEM files as sslcert and sslkey"),
    _rule(
        "sslfactory sslfactoryarg sslhostnameverifier sslpasswordcallback",
        "refused",
        "they name Java classes; use sslmode and sslrootcert",
    ),
    _rule(
        "socketFactory socketFactoryArg cloudSqlInstance",
        "refused",
        "they name Java classes; connect through the Cloud SQL Auth Proxy",
    ),
    _rule(
        "require_auth requirepeer",
        "refused",
        "the driver cannot demand it; sslmode=verify-full authenticates the server",
    ),
    _rule("scram_client_key scram_server_key", "refused", "use a password"),
    _rule(
        "oauth_issuer oauth_client_id oauth_client_secret oauth_scope",
        "refused",
        "the driver has no OAuth; use a password or a client certificate",
    ),
)

DEMANDS = {
    "PGCHANNELBINDING": "channel_binding",
    "PGREQUIREAUTH": "require_auth",
    "PGGSSENCMODE": "gssencmode",
}
"""Variables of libpq that demand something, and their parameters; the driver does not read them."""

_BY_NAME = {name.lower(): rule for rule in RULES for name in rule.names}
_NEW_NAMES = {
    "database": "dbname",
    "ssl-mode": "sslmode",
    "ssl-root-cert": "sslrootcert",
    "ssl-ca": "sslrootcert",
    "ssl-cert": "sslcert",
    "ssl-key": "sslkey",
}
_SETTINGS = {"schema": "database_schema", "currentschema": "database_schema", "pgbouncer": "database_pooler"}
_MEANINGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "ssl": {
        **{mode: ("sslmode", mode) for mode in _MODES},
        **dict.fromkeys(("", *_ON), ("sslmode", "require")),
        **dict.fromkeys(_OFF, ("sslmode", "disable")),
    },
    "sslaccept": {"strict": ("sslmode", "verify-full"), "accept_invalid_certs": ("sslmode", "")},
    "direct_tls": {
        **dict.fromkeys(_ON, ("sslnegotiation", "direct")),
        **dict.fromkeys(_OFF, ("sslnegotiation", "")),
    },
}
"""The parameters of libpq that the values of translated ones become."""
_SHOWN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}")
_SCHEME = re.compile(r"(postgres(?:ql)?)\+[A-Za-z0-9_]+(?=://)", re.IGNORECASE)


def plain_postgres_url(url: str) -> str:
    """Return a PostgreSQL URL in the form that all drivers understand alike.

    Raises:
        ValueError: the text is no such URL, or has a parameter that cannot be honoured; no value is quoted.
    """
    if url.lower().startswith("jdbc:"):
        raise ValueError(
            "is a URL of JDBC; write postgresql://user:password@host:5432/database, user and password inside"
        )
    plain, password_file = split_password_file(_SCHEME.sub(r"\1", url))
    if problem := postgres_problem(plain):
        raise ValueError(problem)
    found: dict[str, str] = {}
    for name, value in _given(plain):
        for new, translated in _translated(name, value):
            known = found.setdefault(new, translated)
            if known != translated and not (new == "sslmode" and {known, translated} <= set(_ENCRYPTING)):
                raise ValueError(f"{new} is given twice, with different values")
            if new == "sslmode":  # ssl=true may be beside sslmode=verify-full
                found[new] = max(known, translated, key=_MODES.index)
    if found.get("sslrootcert") == "system":
        if found.setdefault("sslmode", "verify-full") != "verify-full":
            raise ValueError("sslrootcert=system needs sslmode=verify-full, or none")
        found["sslrootcert"] = _system_authorities()
    if found.get("sslnegotiation") == "direct" and found.get("sslmode") not in _ENCRYPTING:
        raise ValueError("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full")
    query = f"?{urlencode(found, quote_via=quote, safe='/')}" if found else ""
    plain = plain.partition("?")[0] + query
    return with_password_file(plain, password_file) if password_file else plain


def _system_authorities() -> str:
    """Return the file of the system's authorities; the drivers' own OpenSSLs look in different places."""
    files = [ssl.get_default_verify_paths().cafile, *_SYSTEM_AUTHORITIES]
    if not (file := next((file for file in files if file and Path(file).is_file()), None)):
        raise ValueError("sslrootcert=system finds no file of authorities; name the file")
    return file


def settings_in(url: str) -> dict[str, str]:
    """Return the settings that a URL's parameters stand for."""
    named = {_SETTINGS[name.lower()]: value for name, value in _given(url) if name.lower() in _SETTINGS}
    return {key: value.partition(",")[0].strip(' "') for key, value in named.items() if value}


def refused_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the problem of each variable of libpq that demands what the driver cannot do."""
    for variable, name in DEMANDS.items():
        if value := environment.get(variable):
            try:
                _translated(name, value)
            except ValueError as error:
                yield f"{variable}: {error}"


def _given(url: str) -> list[tuple[str, str]]:
    return parse_qsl(url.partition("?")[2], keep_blank_values=True)


def _translated(name: str, value: str) -> list[tuple[str, str]]:
    """Return what a parameter becomes, in libpq's names.

    Raises:
        ValueError: it is unknown, or cannot be honoured.
    """
    if not (rule := _BY_NAME.get(name.lower())):
        shown = name if _SHOWN.fullmatch(name) else "one parameter"
        raise ValueError(
            f"{shown} is no parameter that the worker knows; leave it out, or give a setting of the server as"
            " options=-c%20name%3Dvalue"
        )
    if rule.effect == "refused":
        raise ValueError(f"{name} cannot be honoured: {rule.text}")
    if rule.values and value:
        known = next((known for known in rule.values if known.lower() == value.lower()), None)
        if known is None:
            why = f"; {rule.text.replace('`', '')}" if rule.effect == "ignored" else ""
            raise ValueError(f"{name} must be {' or '.join(rule.values)}, or left out{why}")
        value = "require" if known == "no-verify" else known
    name = name.lower()
    if name in _SETTINGS or rule.effect == "ignored" or not (value or name == "ssl"):
        return []
    if rule.effect == "honoured" or name in _NEW_NAMES:
        return [(_NEW_NAMES.get(name, name), value)]
    if name == "unix_sock":
        return [("host", re.sub(r"/\.s\.PGSQL\.\d+$", "", value))]
    if (meaning := _MEANINGS[name].get(value.lower())) is None:
        raise ValueError(f"{name} has a value that the worker does not know; use sslmode")
    return [meaning] if meaning[1] else []
