"""Signatures of heads: Ed25519 (RFC 8032), verified before anything of a head is read.

A signed head ends with  ,"key_id":"ed25519-<16 hex>","sig":"<86 characters of base64url>"}.  Signed are the bytes
`slodrift-head-v1`, a zero byte, and everything before the signature, so nothing is written anew to verify it. The key id is made
from the public key and names the algorithm: no negotiation, no "none". Keys have an order: once a head of a later key was
believed, the earlier ones are over, on this host, for this pool.

Needs the extra `signing` (pyca/cryptography).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slodrift_client.contract import MAX_HEAD_BYTES, Refused

__all__ = ["HeadKeys"]

_DOMAIN = b"slodrift-head-v1\0"
_TAIL = re.compile(rb',"key_id":"(ed25519-[0-9a-f]{16})","sig":"([A-Za-z0-9_-]{86})"\}\Z')


class HeadKeys:
    """Public keys that heads may be signed with.

    Args:
        keys: PEM, as bytes or as the path of a file; the current key first, then the next.

    Raises:
        ValueError: One is no Ed25519 public key, or there is none.
        OSError: A file cannot be read.
        ImportError: pyca/cryptography is not installed.
    """

    def __init__(self, keys: Sequence[bytes | str | os.PathLike[str]]) -> None:
        try:
            from cryptography.exceptions import InvalidSignature
        except ImportError:
            raise ImportError(
                "signed heads need pyca/cryptography: pip install 'slodrift-client[signing]'", name="cryptography"
            ) from None
        if not keys or isinstance(keys, (bytes, str)):
            raise ValueError("public_keys is a list: the current key and, during a rotation, the next")
        self._invalid = InvalidSignature
        self._keys: dict[bytes, tuple[int, Any]] = {}
        for rank, source in enumerate(keys):
            key = _load(source if isinstance(source, bytes) else Path(source).read_bytes())
            self._keys[f"ed25519-{hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]}".encode()] = rank, key

    def rank(self, raw: bytes) -> int:
        """Place in the order of the key that signed the head.

        Raises:
            Refused: unsigned, unknown_key or bad_signature.
        """
        found = _TAIL.search(raw, max(0, len(raw) - 256)) if len(raw) <= MAX_HEAD_BYTES else None
        if found is None:
            raise Refused("unsigned", "the head has no signature, and this host trusts signed ones alone")
        known = self._keys.get(found[1])
        if known is None:
            raise Refused("unknown_key", f"the head is signed with {found[1].decode()}, which this host does not trust")
        sig = base64.urlsafe_b64decode(found[2] + b"==")
        try:
            known[1].verify(sig, _DOMAIN + raw[: found.start(2)])
        except self._invalid:
            raise Refused("bad_signature", f"the head was not signed with {found[1].decode()}") from None
        return known[0]


def _load(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("this is no Ed25519 public key")
    return key
