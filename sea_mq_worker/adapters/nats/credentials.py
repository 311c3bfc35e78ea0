"""Signs logins with credentials from a file that is read at each login, so new ones need no restart.

nats-py reads a credentials file at each login, too, but hangs on a file without a JWT, crashes on a partly
written one, and keeps sending a seed file's first public key.
"""

import base64
import re
from pathlib import Path

import nats.errors
import nkeys

_JWT = re.compile(rb"-+BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(rb"-+BEGIN USER NKEY SEED-+\s+(\S+)\s")


class FileCredentials:
    """Signs the server's nonce.

    Args:
        path: a credentials file (JWT and seed), or an nkey's seed alone.
        with_jwt: whether the file is a credentials file.

    Attributes:
        jwt: the JWT at the latest signature; empty for an nkey.
        public_key: the public key at the latest signature.
    """

    def __init__(self, path: str, *, with_jwt: bool) -> None:
        self.jwt = b""
        self.public_key = ""
        self._path = Path(path)
        self._with_jwt = with_jwt

    def sign(self, nonce: str) -> bytes:
        """Read the file and sign.

        Raises:
            OSError: the file cannot be read.
            nats.errors.Error: the file holds no usable credentials.
        """
        content = self._path.read_bytes()
        jwt, seed = _JWT.search(content), _SEED.search(content)
        try:
            pair = nkeys.from_seed(bytearray(seed[1] if self._with_jwt and seed else content.strip()))
            self.public_key = pair.public_key.decode()
            signature = base64.b64encode(pair.sign(nonce.encode()))
        except (nkeys.NkeysError, ValueError, TypeError):
            raise nats.errors.Error(f"nats: there is no usable nkey seed in {self._path}") from None
        if self._with_jwt and not jwt:
            raise nats.errors.Error(f"nats: there is no user JWT in {self._path}")
        self.jwt = jwt[1] if jwt else b""
        return signature
