"""Findings about exposed secrets and plaintext connections, which the worker logs at startup, too."""

import os
from collections.abc import Iterator
from shlex import quote

from sea_mq_worker.connections.security_warnings import in_plain_text, readable_by_all, secret_files
from sea_mq_worker.doctor.finding import Finding, Kind, note, warning
from sea_mq_worker.settings import Settings


class ExposureKind(Kind):
    """Findings from the settings; the names of exposures equal the worker's log events."""

    SECRET_FILE_EXPOSED = warning(
        "every user of this machine may read a file with a secret",
        "a reader of the file gets all rights of the worker",
        "remove the read permission of others",
    )
    SECRET_FILE_UNREADABLE = note(
        "a file with a secret is missing, or the user who runs doctor may not read it",
        "a worker of the same user refuses to start",
        "correct the setting, or let the worker's user read the file",
    )
    PLAINTEXT_CONNECTION = note(
        "a connection to another machine is not encrypted by the worker",
        "the network between can read events and passwords, unless it encrypts by itself",
        "set up TLS as in docs/how-to/security.md",
    )


def exposure_findings(s: Settings) -> Iterator[Finding]:
    """Judge URLs and file modes."""
    if plain := "; ".join(in_plain_text(s)):
        yield ExposureKind.PLAINTEXT_CONNECTION.finding("settings", plain)
    for key, path in secret_files(s):
        if not os.access(path, os.R_OK):
            yield ExposureKind.SECRET_FILE_UNREADABLE.finding(key, f"{path} cannot be read")
    for key, path in readable_by_all(s):
        what = f"every user may read its file {path}"
        yield ExposureKind.SECRET_FILE_EXPOSED.finding(key, what, command=f"chmod o-rwx {quote(str(path))}")
