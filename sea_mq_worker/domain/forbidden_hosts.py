"""Hosts refused as a handler by default: clouds hand out a machine's credentials there."""

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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
    """Parse an address as a resolver would."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return _short_or_numeric(host)


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


def _short_or_numeric(host: str) -> IPv4Address | None:
    """Parse forms such as 0xa9fea9fe and 169.254.43518, which resolvers accept."""
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None
