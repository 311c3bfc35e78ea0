"""Reads secrets and certificates from the files that settings name."""

import ssl
import time
from pathlib import Path

from sea_mq_worker.domain.errors import UnavailableError, is_shortage
from sea_mq_worker.settings import SettingsError

_READ_AGAIN_SECONDS = 1.0


class SecretFile:
    """Returns the secret of a file, empty without a file; reads the file again after a second.

    Raises:
        SettingsError: the file cannot be read at first, or is empty.
        UnavailableError: this machine can open no file now.
    """

    def __init__(self, path: Path | None, *, key: str) -> None:
        self._path = path
        self._key = key
        self._read()

    def __call__(self) -> str:
        """Return the secret.

        Raises:
            UnavailableError: the file cannot be read now, or is empty.
        """
        if self._path and time.monotonic() >= self._read_again_at:
            try:
                self._read()
            except SettingsError as error:
                raise UnavailableError(str(error)) from None
        return self._secret

    def _read(self) -> None:
        self._secret = read_secret(self._path, key=self._key)
        self._read_again_at = time.monotonic() + _READ_AGAIN_SECONDS


def read_secret(path: Path | None, *, key: str) -> str:
    """Read a secret from its file; empty without a file.

    Raises:
        SettingsError: the file cannot be read or is empty.
        UnavailableError: this machine can open no file now.
    """
    if path is None:
        return ""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _kind(error)(f"SEA_MQ_{key.upper()}: {error.strerror}: {path}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"SEA_MQ_{key.upper()}: no text: {path}") from None
    if not secret:
        raise SettingsError(f"SEA_MQ_{key.upper()}: empty: {path}")
    return secret


def tls_context(side: str, *, ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return the context that verifies a server; without ``ca`` it uses the system's trust store.

    Raises:
        SettingsError: a file cannot be used; the text names the settings of ``side``.
        UnavailableError: this machine can open no file now.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ssl.SSLError, ValueError) as error:
        where = f"SEA_MQ_{side}_TLS_CA_FILE, _CERT_FILE or _KEY_FILE"
        raise _kind(error)(f"{where}: {getattr(error, 'strerror', '') or error}") from None
    return context


def _kind(error: OSError | ValueError) -> type[SettingsError | UnavailableError]:
    return UnavailableError if isinstance(error, OSError) and is_shortage(error) else SettingsError


def _no_passphrase() -> str:
    """Raise instead of a prompt, which OpenSSL would show at the terminal."""
    raise ValueError("the private key is encrypted; use an unencrypted key")
