"""The parameters of a PostgreSQL URL: each is honoured, translated, ignored on purpose, or refused by name.

Libraries and hosting providers write their own parameters into URLs. A driver passes what it does not know to
the server, which then refuses every session. So a URL gets one form here, which all drivers understand alike.
"""

import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from sea_mq_worker.runtime.addresses import postgres_problem, split_password_file, with_password_file


class Rule(NamedTuple):
    """What becomes of a parameter.

    Attributes:
        becomes: its name in libpq; empty: it is ignored.
        values: the values that it may have, in lower case, and what each becomes (empty: nothing). Any other
            one is refused. None: any value is taken as it is.
        why: the reason of a refusal, or what to do instead.
    """

    becomes: str = ""
    values: Mapping[str, str] | None = None
    why: str = ""


_IGNORED = Rule()


def _rules(names: str, rule: Rule = _IGNORED) -> dict[str, Rule]:
    """Give names, separated by blanks, one rule; their case does not matter."""
    return dict.fromkeys(names.lower().split(), rule)


def _honoured(names: str, *values: str) -> dict[str, Rule]:
    taken = {value.lower(): value for value in values} or None
    return {name: Rule(name, taken) for name in names.split()}


def _ignored_if(values: str, why: str) -> Rule:
    return Rule(values=dict.fromkeys(values.split(), ""), why=why)


def _refused(why: str) -> Rule:
    return Rule(values={}, why=why)


_ENCRYPTING = ("require", "verify-ca", "verify-full")
_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_MODES = ("disable", "allow", "prefer", *_ENCRYPTING)
_ON, _OFF = "true 1 on yes t", "false 0 off no f"
_UNDEMANDED = "prefer disable allow"
_SSLMODE = Rule("sslmode", {mode: mode for mode in _MODES} | {"no-verify": "require"})

RULES: Mapping[str, Rule] = {
    **_honoured("host port user password dbname passfile service krbsrvname gsslib"),
    **_honoured("options sslcert sslkey sslcrl sslpassword sslrootcert"),
    **_honoured(
        "ssl_min_protocol_version ssl_max_protocol_version", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"
    ),
    **_honoured("sslnegotiation", "postgres", "direct"),
    **_rules("sslmode ssl-mode", _SSLMODE),
    **_rules("database", Rule("dbname")),
    **_rules("unix_sock", Rule("host")),
    **_rules("ssl-root-cert ssl-ca", Rule("sslrootcert")),
    **_rules("ssl-cert", Rule("sslcert")),
    **_rules("ssl-key", Rule("sslkey")),
    "ssl": Rule(
        "sslmode",
        {mode: mode for mode in _MODES}
        | dict.fromkeys(["", *_ON.split()], "require")
        | dict.fromkeys(_OFF.split(), "disable"),
        "use sslmode",
    ),
    "sslaccept": Rule("sslmode", {"strict": "verify-full", "accept_invalid_certs": ""}, "use sslmode"),
    "direct_tls": Rule(
        "sslnegotiation", dict.fromkeys(_ON.split(), "direct") | dict.fromkeys(_OFF.split(), "")
    ),
    # They stand for settings: see `settings_in`.
    **_rules("schema currentSchema pgbouncer"),
    # SEA_MQ_DATABASE_SCHEMA names the schema, and sessions have names of their own.
    **_rules("search_path application_name ApplicationName fallback_application_name"),
    # SEA_MQ_DATABASE_TIMEOUT_SECONDS limits a statement, and 10 s an attempt to connect.
    **_rules(
        "connect_timeout connectTimeout loginTimeout socketTimeout timeout command_timeout statement_timeout"
        " lock_timeout idle_in_transaction_session_timeout"
    ),
    # The worker sets its own.
    **_rules("keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout tcpKeepAlive"),
    # SEA_MQ_DATABASE_POOL_MAX limits the pools.
    **_rules(
        "connection_limit pool_timeout pool pool_size max_overflow pool_recycle pool_pre_ping min_size"
        " max_size pool_max_conns pool_min_conns pool_max_conn_lifetime pool_max_conn_idle_time"
        " pool_health_check_period socket_timeout max_idle_connection_lifetime checkout_timeout"
        " conn_max_age conn_health_checks"
    ),
    # SEA_MQ_DATABASE_POOLER decides about prepared statements.
    **_rules(
        "statement_cache_size prepared_statement_cache_size statement_cache_capacity statement-cache-capacity"
        " description_cache_capacity max_cached_statement_lifetime max_cacheable_statement_size"
        " prepareThreshold prepare_threshold preparedStatementCacheQueries preparedStatementCacheSizeMiB"
        " prepared_statements default_query_exec_mode binary_parameters binaryTransfer preferQueryMode"
    ),
    # They have no effect on the worker.
    **_rules(
        "reWriteBatchedInserts defaultRowFetchSize stringtype autosave assumeMinServerVersion autocommit"
        " async_fallback hostRecheckSeconds loadBalanceHosts load_balance_hosts supa workaround"
        " uselibpqcompat sslcompression sslsni sslkeylogfile TimeZone max_protocol_version"
    ),
    **_rules(
        "target_session_attrs targetServerType",
        _ignored_if(
            "any read-write primary master",
            "the worker connects to the primary; name it, and no standby alone",
        ),
    ),
    **_rules("client_encoding encoding charset", _ignored_if("utf8 utf-8 auto", "the worker speaks UTF-8")),
    **_rules("replication", _ignored_if(_OFF, "the worker needs no replication connection")),
    **_rules(
        "channel_binding channelBinding",
        _ignored_if(
            _UNDEMANDED,
            "the driver has none; sslmode=verify-full&sslrootcert=system authenticates the server",
        ),
    ),
    **_rules("gssencmode", _ignored_if(_UNDEMANDED, "the driver has no GSS encryption")),
    **_rules("gssdelegation", _ignored_if(_OFF, "the driver delegates no credentials")),
    **_rules("sslcertmode", _ignored_if("allow", "sslcert decides")),
    **_rules("min_protocol_version", _ignored_if("3.0", "the driver speaks version 3.0")),
    **_rules("hostaddr", _refused("write the address as the host")),
    **_rules("servicefile", _refused("name the file in PGSERVICEFILE")),
    **_rules("sslcrldir", _refused("name one file by sslcrl")),
    **_rules("sslidentity", _refused("write PEM files as sslcert and sslkey")),
    **_rules(
        "sslfactory sslfactoryarg sslhostnameverifier sslpasswordcallback",
        _refused("they name Java classes; use sslmode and sslrootcert"),
    ),
    **_rules(
        "socketFactory socketFactoryArg cloudSqlInstance",
        _refused("they name Java classes; connect through the Cloud SQL Auth Proxy"),
    ),
    **_rules(
        "require_auth requirepeer",
        _refused("the driver cannot demand it; sslmode=verify-full authenticates the server"),
    ),
    **_rules("scram_client_key scram_server_key", _refused("use a password")),
    **_rules(
        "oauth_issuer oauth_client_id oauth_client_secret oauth_scope",
        _refused("the driver has no OAuth; use a password or a client certificate"),
    ),
}
"""By name in lower case."""

_SETTINGS = {"schema": "database_schema", "currentschema": "database_schema", "pgbouncer": "database_pooler"}
_DEMANDS = {
    "PGCHANNELBINDING": "channel_binding",
    "PGREQUIREAUTH": "require_auth",
    "PGGSSENCMODE": "gssencmode",
}
"""Variables of libpq that demand something, and their parameters; the driver does not read them."""
_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep their authorities in one file, if OpenSSL's own default names none."""
_SHOWN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}")
_SCHEME = re.compile(r"(postgres(?:ql)?)\+[A-Za-z0-9_]+(?=://)", re.IGNORECASE)


def plain_postgres_url(url: str) -> str:
    """Return a PostgreSQL URL in the form that all drivers understand alike.

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
    for given, text in _given(plain):
        name, value = _translated(given, text)
        known = found.setdefault(name, value)
        if known != value and not (name == "sslmode" and {known, value} <= set(_ENCRYPTING)):
            raise ValueError(f"{name} is given twice, with different values")
        if name == "sslmode":  # ssl=true may be beside sslmode=verify-full
            found[name] = max(known, value, key=_MODES.index)
    found.pop("", None)
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
    """Return the settings that a URL's parameters stand for, unless they are set."""
    named = {_SETTINGS[name.lower()]: value for name, value in _given(url) if name.lower() in _SETTINGS}
    return {key: value.partition(",")[0].strip(' "') for key, value in named.items() if value}


def refused_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the problem of each variable of libpq that demands what the driver cannot do."""
    for variable, name in _DEMANDS.items():
        if value := environment.get(variable):
            try:
                _translated(name, value)
            except ValueError as error:
                yield f"{variable}: {error}"


def _given(url: str) -> list[tuple[str, str]]:
    return parse_qsl(url.partition("?")[2], keep_blank_values=True)


def _translated(given: str, value: str) -> tuple[str, str]:
    """Return what a parameter becomes; an empty name: nothing."""
    if not (rule := RULES.get(given.lower())):
        shown = given if _SHOWN.fullmatch(given) else "one parameter"
        raise ValueError(
            f"{shown} is no parameter that the worker knows; leave it out, or give a setting of the server as"
            " options=-c%20name%3Dvalue"
        )
    if rule.values is not None and (value or not rule.values or "" in rule.values):
        if value.lower() not in rule.values:
            known = " or ".join(filter(None, rule.values))
            must = f"must be {known}, or left out" if known else "cannot be honoured"
            raise ValueError(f"{given} {must}{rule.why and f': {rule.why}'}")
        value = rule.values[value.lower()]
    if given.lower() == "unix_sock":
        value = re.sub(r"/\.s\.PGSQL\.\d+$", "", value)
    return (rule.becomes, value) if rule.becomes and value else ("", "")
