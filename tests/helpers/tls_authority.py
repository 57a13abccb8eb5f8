"""Certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """A certificate authority and one server certificate."""

    def __init__(self, folder: Path, name: str, address: str = "127.0.0.1") -> None:
        self.ca, self.cert, self.key = (folder / f"{name}.{kind}" for kind in ("ca", "crt", "key"))
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ca = self._certificate(ca_name, ca_name, ca_key, ca_key, x509.BasicConstraints(ca=True, path_length=0))
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
        self.ca.write_bytes(ca.public_bytes(Encoding.PEM))
        self.cert.write_bytes(self._certificate(subject, ca_name, key, ca_key, alternative).public_bytes(Encoding.PEM))
        self.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    @staticmethod
    def _certificate(
        subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
    ) -> x509.Certificate:  # fmt: skip
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(NOW - datetime.timedelta(hours=1))
            .not_valid_after(NOW + datetime.timedelta(hours=1)).add_extension(extension, critical=True)
        )  # fmt: skip
        return builder.sign(by, hashes.SHA256())
