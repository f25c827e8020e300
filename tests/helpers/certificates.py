"""Certificates for tests: an authority and what it certifies."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Pair:
    """PEM files of a certificate and its private key."""

    cert: Path
    key: Path


class Authority:
    """Who certifies; its own certificate is `pair.cert`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pair = self._written(name, self._key, self._signed(self._name, self._key, 365, True))

    def certify(self, name: str, days: int = 30) -> Pair:
        """A certificate for this machine, good from two days before `days` (or now) on."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._written(name, key, self._signed(_name(name), key, days, False))

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=min(days, 0) - 2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(here), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _written(self, name: str, key: ec.EllipticCurvePrivateKey, cert: x509.Certificate) -> Pair:
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
