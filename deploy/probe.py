"""Ask the worker in this container for a path; exit 0 if it answers 200.

Proxies from the environment are not for this, so the request is made without them.
"""

import http.client
import os
import sys

TIMEOUT_SECONDS = 4.0


def main(path: str) -> int:
    """Return the exit code for the answer to GET ``path``."""
    host = os.environ.get("SEA_MQ_ADMIN_HOST", "127.0.0.1")
    port = int(os.environ.get("SEA_MQ_ADMIN_PORT", "8080"))
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        sys.stdout.write(f"{answer.status} {answer.read().decode(errors='replace')}\n")
    except OSError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return int(answer.status != http.client.OK)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
