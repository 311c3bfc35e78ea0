"""Addresses of servers: their parts, and whether a connection to them leaves the machine.

A description of a faulty address never quotes the address: it may contain a password, and a password with a
character that should be percent-encoded is parsed as part of a host or a port.
"""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, parse_qs, unquote, unquote_plus, urlencode, urlsplit

_NATS_SCHEMES = frozenset({"nats", "tls"})
_ENCODE = "in user and password anything but letters, digits and -._~ is percent-encoded"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:,@]*)(?::([0-9]{1,5}))?")
_PORT_MAX = 65_535
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\s]*)([^?#\s]*)(?:\?([^#\s]*))?(?:#(.*))?")
"""urlsplit refuses a name and a bracketed IPv6 address in one list of hosts."""
_PORT = re.compile(r":[0-9]+$")
_NOTHING = SplitResult("", "", "", "", "")
_FILE_PARAMETER = "password_file"
"""Parameter that no driver knows; only this module writes and reads it."""
_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAddress:
    """One NATS server, and its login: user and password, or a token; the URL is without them."""

    url: str
    host: str
    demands_tls: bool
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def nats_addresses(text: str) -> list[NatsAddress]:
    """Parse a comma-separated list of ``nats://`` or ``tls://`` URLs; ValueError: an entry is no such URL."""
    return [_nats_address(part.strip()) for part in text.split(",")]


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


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is this machine; a name other than localhost may be any machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def postgres_problem(dsn: str) -> str:
    """Return the error in the form of a PostgreSQL URL; empty: no error."""
    parts = _parts(dsn)
    if parts.scheme not in {"postgresql", "postgres"} or "@" in parts.path or parts.netloc.count("@") > 1:
        return f"expected postgresql://user:password@host:5432/database; {_ENCODE}"
    return ""


def postgres_address(dsn: str) -> tuple[str, list[tuple[str, int]]]:
    """Split a PostgreSQL URL into the URL without hosts, and its hosts; a missing port is 0.

    ValueError: the text is no such URL.
    """
    if problem := postgres_problem(dsn):
        raise ValueError(problem)
    parts = _parts(dsn)
    login, at, hosts = parts.netloc.rpartition("@")
    ports = [int(text.rpartition(":")[2]) if _PORT.search(text) else 0 for text in hosts.split(",")]
    named = [(host or "localhost", port) for host, port in zip(_hosts(parts), ports, strict=True)]
    rest = dsn.partition("://")[2].removeprefix(parts.netloc)
    return f"{parts.scheme}://{login}{at}{rest}", named if hosts else []


def is_postgres_exposed(dsn: str, *, default_mode: str) -> bool:
    """Return whether a session may cross a network in plain text.

    ``default_mode`` applies where the URL has no sslmode. A Unix socket (a host that begins with a slash)
    crosses no network.
    """
    parts = _parts(dsn)
    given = parse_qs(parts.query)
    if given.get("sslmode", [default_mode])[-1] in _ENCRYPTED:
        return False
    hosts = [*_hosts(parts), *(host for text in given.get("host", []) for host in text.split(","))]
    return any(host and not (host.startswith("/") or is_loopback(host)) for host in hosts)


def postgres_files(dsn: str) -> list[str]:
    """Return the files that a PostgreSQL URL names, for TLS and for the password."""
    given = parse_qs(_parts(dsn).query)
    keys = ("sslrootcert", "sslcert", "sslkey", "sslcrl", _FILE_PARAMETER)
    return [path for key in keys for path in given.get(key, [])]


def with_password_file(dsn: str, path: str) -> str:
    """Return a PostgreSQL URL that also names the file with the password, for ``split_password_file``."""
    plain, _ = split_password_file(dsn)
    return f"{plain}{'&' if '?' in plain else '?'}{urlencode({_FILE_PARAMETER: path})}"


def split_password_file(dsn: str) -> tuple[str, str]:
    """Return a PostgreSQL URL as drivers take it, and the file with the password; empty: none."""
    found = re.search(rf"[?&]{_FILE_PARAMETER}=([^&]*)$", dsn)
    return (dsn[: found.start()], unquote_plus(found[1])) if found else (dsn, "")


def has_password(dsn: str) -> bool:
    """Return whether a PostgreSQL URL holds a password itself."""
    parts = _parts(dsn)
    return bool(parts.password) or "password" in parse_qs(parts.query)


def http_problem(url: str) -> str:
    """Return the error in the form of a handler's URL; empty: no error."""
    parts = _parts(url)
    hosts = _hosts(parts)
    if parts.scheme not in {"http", "https"} or len(hosts) != 1 or not hosts[0] or "%" in hosts[0]:
        return "expected an http:// or https:// URL without spaces and fragment, as http://host:8000/handle"
    return "must not hold a user or password; use handler_token_file" if "@" in parts.netloc else ""


def is_http_exposed(url: str) -> bool:
    """Return whether requests cross a network in plain text."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _parts(text: str) -> SplitResult:
    """Split a URL; the result is empty for no URL, for unreadable hosts or ports, and for a fragment."""
    if not (found := _URL.fullmatch(text)):
        return _NOTHING
    parts = SplitResult(found[1].lower(), *(found[group] or "" for group in (2, 3, 4, 5)))
    hosts = [_HOST.fullmatch(host) for host in parts.netloc.rpartition("@")[2].split(",")]
    are_readable = all(host and 1 <= int(host[2] or 1) <= _PORT_MAX for host in hosts)
    return parts if are_readable and not parts.fragment else _NOTHING


def _hosts(parts: SplitResult) -> list[str]:
    named = map(_HOST.match, parts.netloc.rpartition("@")[2].split(","))
    return [unquote(found[1]).strip("[]") for found in named if found]


# --- Hosts refused as a handler by default: clouds hand out a machine's credentials there.

_NAMES = frozenset(
    {"metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
_BEYOND_LINK_LOCAL = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
_LAST_BYTES = tuple(map(ip_network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""IPv4-compatible and NAT64 addresses; the last four bytes are the IPv4 address (RFC 4291, RFC 6052)."""

_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
_LOCAL_NAT64_PLACES = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12))
"""Positions of the IPv4 address for prefixes of 48, 56 and 64 bits (RFC 6052, RFC 8215)."""


def is_metadata_host(host: str) -> bool:
    """Return whether ``host``, in any notation, is link-local or a cloud's metadata service."""
    if host.lower().rstrip(".") in _NAMES:
        return True
    address = _address(host)
    return address is not None and any(
        one.is_link_local or one in _BEYOND_LINK_LOCAL for one in (address, *_within(address))
    )


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an address as a resolver would, which takes 0xa9fea9fe and 169.254.43518, too."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _within(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address]:
    """Return every IPv4 address to which an IPv6 address may lead."""
    if isinstance(address, IPv4Address):
        return
    yield from filter(None, (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())))
    packed = address.packed
    if any(address in network for network in _LAST_BYTES):
        yield IPv4Address(packed[-4:])
    if address in _LOCAL_NAT64:
        for places in _LOCAL_NAT64_PLACES:
            yield IPv4Address(bytes(packed[place] for place in places))
