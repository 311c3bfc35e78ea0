"""Where no handler is looked for unless asked: clouds hand out a machine's credentials there."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_NAMES = frozenset(
    {"metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
_BEYOND_LINK_LOCAL = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
_TRANSLATED = ip_network("64:ff9b::/96")
_IPV4_BITS = 0xFFFF_FFFF


def is_metadata_host(host: str) -> bool:
    """Tell whether ``host``, in any notation, is link-local or a cloud's metadata service."""
    if host.lower().rstrip(".") in _NAMES:
        return True
    address = _address(host)
    return address is not None and (address.is_link_local or address in _BEYOND_LINK_LOCAL)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Read an address as a resolver would; one within IPv6 counts as the IPv4 address that it leads to."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return _short_or_numeric(host)
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(int(address) & _IPV4_BITS)
    return address.ipv4_mapped or address.sixtofour or address


def _short_or_numeric(host: str) -> IPv4Address | None:
    """Read forms such as 0xa9fea9fe and 169.254.43518, which resolvers take."""
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None
