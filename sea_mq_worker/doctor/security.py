"""What the settings let others read, as the worker tells it at its start."""

from collections.abc import Iterator
from shlex import quote

from sea_mq_worker.connections.security_warnings import in_plain_text, readable_by_all
from sea_mq_worker.doctor.catalog import Kind
from sea_mq_worker.doctor.finding import Finding, Severity
from sea_mq_worker.settings import Settings


class ExposureKind(Kind):
    """Found in the settings; the names are the events that the worker logs."""

    SECRET_FILE_EXPOSED = (
        Severity.WARNING,
        "every user of this machine may read a file with a secret",
        "whoever reads it can do what the worker may",
        "take the right away",
    )
    PLAINTEXT_CONNECTION = (
        Severity.INFO,
        "a connection to another machine is not encrypted by the worker",
        "who is in between reads events and passwords, unless the network encrypts by itself",
        "set up TLS as in docs/how-to/security.md",
    )


def exposure_findings(s: Settings) -> Iterator[Finding]:
    """Judge URLs and the modes of files."""
    if plain := "; ".join(in_plain_text(s)):
        yield ExposureKind.PLAINTEXT_CONNECTION.found("settings", plain)
    for key, path in readable_by_all(s):
        what = f"its file {path} may be read by everybody"
        yield ExposureKind.SECRET_FILE_EXPOSED.found(key, what, command=f"chmod o-rwx {quote(str(path))}")
