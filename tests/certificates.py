"""Certificates for tests, made on the spot: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """One that signs, with its certificate in `ca`.

    Args:
        folder: for its files.
        name: of it, and of its files.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._begun(self._subject, self._key).add_extension(basic, critical=True)
        self.ca: Path = folder / f"{name}.pem"
        self._write(self.ca, certificate.sign(self._key, hashes.SHA256()))

    def sign(self, name: str, days: float = 1.0) -> tuple[Path, Path]:
        """Files of a certificate for this machine, and of its key. With `days` below 0 it has
        expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
        names = x509.SubjectAlternativeName(hosts)
        certificate = self._begun(subject, key, days).add_extension(names, critical=False)
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._write(paths[0], certificate.sign(self._key, hashes.SHA256()))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def _begun(self, subject: x509.Name, key: Any, days: float = 1.0) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
