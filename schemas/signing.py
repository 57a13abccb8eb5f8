"""Ed25519 signatures (RFC 8032) over lines of JSON: heads of pools, anchors of the audit, overrides.

The signature is the last member of the object, in a fixed form, so a reader verifies the bytes it received and never writes
them anew:  {...,"key_id":"ed25519-<16 hex>","sig":"<86 characters of base64url>"}. Signed are the domain (which kind of object),
a zero byte, and everything before the signature's first character, key id included. The key id is made from the public key and
names the algorithm: there is nothing to negotiate and no "none". `slodrift_client` has its own reader of the same form.

Needs the extra `signing` (pyca/cryptography). Keys are PEM files: openssl genpkey -algorithm ed25519 -out key.pem, and
openssl pkey -in key.pem -pubout -out key.pub.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from schemas.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["ENVELOPE_BYTES", "Domain", "Keyring", "Signer", "key_id_of", "load_keyring", "load_signer"]

Domain = Literal["slodrift-head-v1", "slodrift-anchor-v1", "slodrift-override-v1"]

_SIG_CHARS = 86
_TAIL = re.compile(rb',"key_id":"(ed25519-[0-9a-f]{16})","sig":"([A-Za-z0-9_-]{86})"\}\Z')
ENVELOPE_BYTES = len(',"key_id":"ed25519-","sig":""') + 16 + _SIG_CHARS
"""By how much a signature makes a line longer."""


def key_id_of(public: bytes) -> str:
    """Name of a public key (32 bytes): the algorithm, and the beginning of the key's SHA-256."""
    return f"ed25519-{hashlib.sha256(public).hexdigest()[:16]}"


class Signer:
    """Signs with one private key.

    Args:
        key: The key; `load_signer` reads a file.

    Attributes:
        key_id: Its name.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = key_id_of(key.public_key().public_bytes_raw())

    def sign(self, domain: Domain, raw: bytes) -> bytes:
        """`raw`, a JSON object with at least one member and no blank behind it, with its signature."""
        if not raw.endswith(b"}") or len(raw) < 3:
            raise ValueError("only a JSON object with members is signed")
        text = raw[:-1] + f',"key_id":"{self.key_id}","sig":"'.encode()
        sig = base64.urlsafe_b64encode(self._key.sign(domain.encode() + b"\0" + text)).rstrip(b"=")
        return text + sig + b'"}'

    def keyring(self) -> Keyring:
        """Verifies what this key signed."""
        return Keyring([self._key.public_key()])


class Keyring:
    """Verifies against public keys; in order, the current one first and then the next.

    Args:
        keys: Ed25519 public keys; `load_keyring` reads files.
    """

    def __init__(self, keys: Sequence[Ed25519PublicKey]) -> None:
        self._keys = {key_id_of(key.public_bytes_raw()): (rank, key) for rank, key in enumerate(keys)}

    def verify(self, domain: Domain, raw: bytes) -> str:
        """Key id of the key that signed `raw` as such an object.

        Raises:
            SchemaError: With reason unsigned, unknown_key or bad_signature.
        """
        from cryptography.exceptions import InvalidSignature

        found = _TAIL.search(raw)
        if found is None:
            raise SchemaError("unsigned", "there is no signature at its end")
        name = found[1].decode()
        if name not in self._keys:
            raise SchemaError("unknown_key", f"signed with {name}, trusted are {', '.join(self._keys) or 'none'}")
        sig = base64.urlsafe_b64decode(found[2] + b"==")
        if base64.urlsafe_b64encode(sig).rstrip(b"=") != found[2]:  # the last character has bits that say nothing
            raise SchemaError("bad_signature", "the signature is not written as it should be")
        try:
            self._keys[name][1].verify(sig, domain.encode() + b"\0" + raw[: found.start(2)])
        except InvalidSignature:
            raise SchemaError("bad_signature", f"it was not signed with {name} as {domain}") from None
        return name


def load_signer(path: Path) -> Signer:
    """Signer with the private key of a PEM file (PKCS #8).

    Raises:
        ConfigError: The file cannot be read, is no Ed25519 key, may be read by everybody, or the extra is missing.
    """
    serialization, ed25519 = _library()
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigError(f"{path}: everybody on this machine may use this private key; chmod 600 {path}")
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as exc:
        raise ConfigError(f"{path}: the key cannot be read: {exc.strerror}") from None
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{path}: this is no private key in PEM: {type(exc).__name__}; {_MAKE}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigError(f"{path}: this is no Ed25519 key; {_MAKE}")
    return Signer(key)


def load_keyring(paths: Sequence[Path]) -> Keyring:
    """Keyring of the public keys of PEM files.

    Raises:
        ConfigError: As `load_signer`.
    """
    serialization, ed25519 = _library()
    keys = []
    for path in paths:
        try:
            key = serialization.load_pem_public_key(path.read_bytes())
        except OSError as exc:
            raise ConfigError(f"{path}: the key cannot be read: {exc.strerror}") from None
        except ValueError as exc:
            raise ConfigError(f"{path}: this is no public key in PEM: {type(exc).__name__}") from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise ConfigError(f"{path}: this is no Ed25519 key")
        keys.append(key)
    return Keyring(keys)


_MAKE = "make one: openssl genpkey -algorithm ed25519 -out FILE"


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigError("signatures need pyca/cryptography: pip install 'slodrift[signing]'") from None
    return serialization, ed25519
