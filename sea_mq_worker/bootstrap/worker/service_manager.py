"""Report the start of the worker to a service manager such as systemd, by the protocol of sd_notify.

A service manager with `Type=notify` holds up the start of what depends on the worker until then.
"""

import os
import socket

from sea_mq_worker.settings import SettingsError

_VARIABLE = "NOTIFY_SOCKET"
_ABSTRACT = "@"
"""First character of a socket in the abstract namespace, which has a NUL byte there."""


def report_ready() -> None:
    """Send ``READY=1`` to the socket that the service manager names; without one do nothing.

    Raises:
        SettingsError: the socket cannot be used. The service manager would wait for ever.
    """
    address = os.environ.get(_VARIABLE, "")
    if not address:
        return
    if address.startswith(_ABSTRACT):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            notifications.sendto(b"READY=1", address)
    except OSError as error:
        raise SettingsError(f"{_VARIABLE}: {error.strerror}") from error
