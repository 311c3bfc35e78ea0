"""A decentralised NATS account, its operator and its users, as nsc would make them."""

import base64
import hashlib
import json
import os
import time
from typing import Any

import nkeys


class Key:
    """A key pair of an operator, an account or a user."""

    def __init__(self, prefix: int) -> None:
        """Make one of the kind that ``prefix`` stands for."""
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    def sign(self, subject: "Key", kind: str, seconds: int = 0, **claims: Any) -> str:
        """Return a JWT by this key for ``subject``, valid for some seconds or without an end."""
        body = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": kind,
            "sub": subject.public,
            "nats": {"type": kind, "version": 2, **claims},
        }
        if seconds:
            body["exp"] = int(time.time()) + seconds
        body["jti"] = hashlib.sha256(json.dumps(body).encode()).hexdigest()
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        signed = ".".join(_coded(json.dumps(part).encode()) for part in (head, body))
        return f"{signed}.{_coded(self._pair.sign(signed.encode()))}"


def user_key() -> Key:
    """Make a user's key, for a server that knows users by their public keys."""
    return Key(nkeys.PREFIX_BYTE_USER)


class Account:
    """An account that a server trusts by its operator; ``config`` is the server's."""

    def __init__(self) -> None:
        """Make the operator, the account, the system's account and their keys."""
        operator, self._account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        system = Key(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        streams = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        accounts = {
            self._account.public: operator.sign(self._account, "account", limits={**limits, **streams}),
            system.public: operator.sign(system, "account", limits=limits),
        }
        self.config: dict[str, Any] = {
            "operator": operator.sign(operator, "operator"),
            "resolver": "MEMORY",
            "resolver_preload": accounts,
            "system_account": system.public,
        }

    def creds(self, seconds: int = 0) -> str:
        """Create a user, valid for some seconds or without an end; return its credentials file's content."""
        user = user_key()
        unlimited = {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
        token = self._account.sign(user, "user", seconds, **unlimited)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
