"""A private certificate authority and its certificates, made for one test run."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)
_USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
_SIGNS = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False, **dict.fromkeys(_USES, False)
)
"""Python 3.13 and newer want it of an authority, and both sides' key identifiers."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; ``ca`` is its own, as a file."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Make the authority's key and write its certificate to the folder."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = (
            _builder(self._name, self._name, self._key, age=_DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, expired: bool = False) -> Certificate:
        """Sign a certificate for these hosts, names or addresses, that clients may use too."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(_name(name), self._name, key, age=30 * _DAY if expired else _DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.key.touch(mode=0o600)
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def for_servers(self, own: Certificate, *, verify_clients: ssl.VerifyMode) -> ssl.SSLContext:
        """Return the context of a server with this certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        context.verify_mode = verify_clients
        context.load_cert_chain(own.cert, own.key)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, age: timedelta
) -> x509.CertificateBuilder:
    """Begin a certificate that is valid for ten days from ``age`` ago on."""
    begin = datetime.now(UTC) - age
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + 10 * _DAY)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def encrypted(key: Path) -> bytes:
    """Return a key with a passphrase on it."""
    loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"passphrase"),
    )


_SSL_REQUEST = struct.pack("!ii", 8, 80877103)


@asynccontextmanager
async def postgres_tls(dsn: str, context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Listen on 127.0.0.1 and give the DSN that leads there; without a context TLS is not offered.

    Where the context wants a client's certificate and gets none, the server's own words say so.
    """
    target = urlsplit(dsn)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                await _serve(reader, writer)
            finally:
                writer.close()

    async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(8) != _SSL_REQUEST:
            writer.write(_fatal("no pg_hba.conf entry for this host: no encryption"))
            return
        writer.write(b"N" if context is None else b"S")
        if context is None:
            return
        await writer.start_tls(context)
        secured = writer.get_extra_info("ssl_object")
        if context.verify_mode is not ssl.CERT_NONE and not secured.getpeercert():
            await reader.read(1024)
            writer.write(_fatal("connection requires a valid client certificate"))
            return
        upstream_reader, upstream_writer = await asyncio.open_connection(target.hostname, target.port)
        try:
            await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))
        finally:
            upstream_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = target.netloc.rpartition("@")[0]
    try:
        yield target._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def _fatal(text: str) -> bytes:
    named = (("S", "FATAL"), ("C", "28000"), ("M", text))
    fields = b"".join(f"{kind}{value}\0".encode() for kind, value in named)
    return b"E" + struct.pack("!i", len(fields) + 5) + fields + b"\0"
