"""What an operator may order: when it is in force, what makes it void, and how it is signed.

An override is in force in the half-open interval [start, end): adjacent ones neither overlap nor leave a gap. It travels with the
telemetry of its pool, so the judge stays the only writer of decisions, and a replay of the same events gives the same ones.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from schemas.errors import ConfigError, SchemaError
from schemas.signing import Keyring, Signer
from schemas.telemetry import OverrideEvent

__all__ = ["MAX_AHEAD_S", "MAX_OVERRIDE_S", "keyring_of", "override_fault", "sign_override", "verify_override"]

MAX_OVERRIDE_S = 4 * 3600.0
"""Longest override, seconds; a policy may allow less."""
MAX_AHEAD_S = 24 * 3600.0
"""It begins at most this long after it was ordered, seconds."""
_MAX_TEXT = 512

_encode = msgspec.json.Encoder(order="sorted").encode


def override_fault(event: OverrideEvent, max_s: float = MAX_OVERRIDE_S) -> str:
    """Why the override is void, or ""."""
    if not event.reason.strip() or len(event.reason) > _MAX_TEXT:
        return f"a reason of 1 to {_MAX_TEXT} characters is compulsory"
    if not event.operator.strip():
        return "it does not say who orders it"
    if not event.ts <= event.start <= event.ts + MAX_AHEAD_S:  # NaN is in no interval
        return f"it starts before it was ordered, or more than {MAX_AHEAD_S / 3600:g} h later"
    if event.state == "CLOSED":
        return "" if event.end == event.start else "CLOSED is done at once and has no length: its end is its start"
    if not event.start < event.end <= event.start + max_s:
        return f"it must end after its start and at most {max_s / 3600:g} h later"
    return ""


def sign_override(event: OverrideEvent, signer: Signer) -> OverrideEvent:
    """The event with a signature over all its other fields."""
    signed = msgspec.json.decode(signer.sign("slodrift-override-v1", _text(event)))
    return msgspec.structs.replace(event, key_id=signed["key_id"], sig=signed["sig"])


def verify_override(event: OverrideEvent, keys: Keyring) -> str:
    """Key id of the operator's key that signed it.

    Raises:
        SchemaError: With reason unsigned, unknown_key or bad_signature.
    """
    if event.key_id is None or event.sig is None:
        raise SchemaError("unsigned", "it has no signature, and the policy names the keys of operators")
    tail = f',"key_id":"{event.key_id}","sig":"{event.sig}"}}'
    return keys.verify("slodrift-override-v1", _text(event)[:-1] + tail.encode())


@lru_cache(maxsize=64)
def keyring_of(keys: Sequence[str]) -> Keyring:
    """Keyring of public keys as a policy has them: the base64 line of a PEM file.

    Raises:
        ConfigError: One is no Ed25519 public key, or the extra `signing` is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_der_public_key
    except ImportError:
        raise ConfigError("the policy names keys of operators: pip install 'slodrift[signing]'") from None
    loaded = [load_der_public_key(base64.b64decode(key)) for key in keys]
    if not all(isinstance(key, Ed25519PublicKey) for key in loaded):
        raise ConfigError("override.keys: one is no Ed25519 public key")
    return Keyring([key for key in loaded if isinstance(key, Ed25519PublicKey)])


def _text(event: OverrideEvent) -> bytes:
    """Canonical JSON of what is signed; the same from JSON and from a frame, since every field has one type."""
    return _encode(msgspec.structs.replace(event, key_id=None, sig=None))
