"""Addresses of servers: what they are made of, and whether what goes there leaves the machine.

What is wrong with an address is told without quoting any of it: a password may stand in it, and one with a
character that should be percent-encoded shows up in the place of a host or a port.
"""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

_NATS_SCHEMES = frozenset({"nats", "tls"})
_ENCODE = "in user and password anything but letters, digits and -._~ is percent-encoded"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:,@]*)(:[0-9]{1,5})?")
_NOTHING = urlsplit("")
_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAddress:
    """One NATS server, and how to log in there.

    Attributes:
        url: without credentials.
        token: stands for itself, without user and password.
    """

    url: str
    host: str
    demands_tls: bool
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def nats_addresses(text: str) -> list[NatsAddress]:
    """Take a comma-separated list of ``nats://`` or ``tls://`` URLs apart.

    Raises:
        ValueError: one is no such URL.
    """
    return [_nats_address(part.strip()) for part in text.split(",")]


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is this machine; a name other than localhost may be any machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def postgres_problem(dsn: str) -> str:
    """Tell what is wrong with a PostgreSQL URL as far as its form goes; empty: nothing is."""
    parts = _parts(dsn)
    if parts.scheme not in {"postgresql", "postgres"} or "@" in parts.path:
        return f"expected postgresql://user:password@host:5432/database; {_ENCODE}"
    return ""


def is_postgres_exposed(dsn: str, *, default_mode: str) -> bool:
    """Tell whether a session may cross a network in plain text.

    ``default_mode`` stands where the URL has no sslmode. A Unix socket, a host that begins with a slash,
    crosses none.
    """
    parts = _parts(dsn)
    given = parse_qs(parts.query)
    if given.get("sslmode", [default_mode])[-1] in _ENCRYPTED:
        return False
    hosts = [*_hosts(parts), *(host for text in given.get("host", []) for host in text.split(","))]
    return any(host and not (host.startswith("/") or is_loopback(host)) for host in hosts)


def postgres_tls_files(dsn: str) -> list[str]:
    """Return the files that a PostgreSQL URL names for TLS."""
    given = parse_qs(_parts(dsn).query)
    return [path for key in ("sslrootcert", "sslcert", "sslkey", "sslcrl") for path in given.get(key, [])]


def is_http_exposed(url: str) -> bool:
    """Tell whether requests cross a network in plain text."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _nats_address(text: str) -> NatsAddress:
    parts = _parts(text if "://" in text else f"nats://{text}")
    hosts = _hosts(parts)
    if parts.scheme not in _NATS_SCHEMES or parts.path not in {"", "/"} or len(hosts) != 1 or not hosts[0]:
        raise ValueError(f"expected nats://host:4222 or tls://host:4222, comma-separated; {_ENCODE}")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return NatsAddress(
        url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
        host=hosts[0],
        demands_tls=parts.scheme == "tls",
        user=user if password else "",
        password=password,
        token="" if password else user,
    )


def _parts(text: str) -> SplitResult:
    """Split a URL; an empty result where it has no readable hosts and ports, or a fragment."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return _NOTHING
    if parts.fragment or not all(map(_HOST.fullmatch, parts.netloc.rpartition("@")[2].split(","))):
        return _NOTHING
    return parts


def _hosts(parts: SplitResult) -> list[str]:
    named = (_HOST.match(text) for text in parts.netloc.rpartition("@")[2].split(","))
    return [unquote(found[1]).strip("[]") for found in named if found]
