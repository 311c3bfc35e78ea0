"""Request a path from the worker in this container; exit 0 if the status is 200.

The request ignores proxies from the environment.
"""

import http.client
import os
import sys

TIMEOUT_SECONDS = 4.0


def main(path: str) -> int:
    """Send GET ``path`` and return the exit code."""
    host = os.environ.get("SEA_MQ_ADMIN_HOST", "127.0.0.1")
    port = int(os.environ.get("SEA_MQ_ADMIN_PORT", "8080"))
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        sys.stdout.write(f"{response.status} {response.read().decode(errors='replace')}\n")
    except OSError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return int(response.status != http.client.OK)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
