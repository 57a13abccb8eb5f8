"""Signing: both directions, key files, and lines that were tampered with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError, SchemaError
from schemas.signing import ENVELOPE_BYTES, Domain, load_keyring, load_signer

DOMAIN: Domain = "slodrift-anchor-v1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as the documentation says."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("a", "b"):
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / name], check=True)
        subprocess.run(["openssl", "pkey", "-in", folder / name, "-pubout", "-out", folder / f"{name}.pub"], check=True)
        (folder / name).chmod(0o600)
    return folder


def test_round_trip(files: Path) -> None:
    signer, keys = load_signer(files / "a"), load_keyring([files / "b.pub", files / "a.pub"])
    signed = signer.sign(DOMAIN, b'{"x":1}')
    assert signed.startswith(b'{"x":1,"key_id":"ed25519-')
    assert len(signed) == len(b'{"x":1}') + ENVELOPE_BYTES
    assert keys.verify(DOMAIN, signed) == signer.key_id
    assert signer.sign(DOMAIN, b'{"x":1}') == signed  # equal lines are equal bytes: the store may compare


def test_only_what_was_signed_verifies(files: Path) -> None:
    signer, keys = load_signer(files / "a"), load_keyring([files / "a.pub"])
    signed = signer.sign(DOMAIN, b'{"x":1}')

    @given(st.integers(0, 8 * len(signed) - 1))
    def flip(bit: int) -> None:
        changed = bytearray(signed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SchemaError):
            keys.verify(DOMAIN, bytes(changed))

    flip()
    for domain in ("slodrift-head-v1", "slodrift-override-v1"):
        with pytest.raises(SchemaError, match="bad_signature"):
            keys.verify(domain, signed)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="unknown_key"):
        load_keyring([files / "b.pub"]).verify(DOMAIN, signed)
    for unsigned in (b"", b"{}", b'{"x":1}', signed[:-1], signed + b" "):
        with pytest.raises(SchemaError, match="unsigned"):
            keys.verify(DOMAIN, unsigned)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1]", b'{"x":1}\n'])
def test_what_is_no_object_is_not_signed(files: Path, raw: bytes) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        load_signer(files / "a").sign(DOMAIN, raw)


def test_key_files_are_checked(files: Path, tmp_path: Path) -> None:
    other = tmp_path / "ec"
    other.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    other.chmod(0o600)
    text = tmp_path / "text"
    text.write_text("no key")
    text.chmod(0o600)
    public = tmp_path / "open"
    public.write_bytes((files / "a").read_bytes())
    public.chmod(0o644)
    for path, said in (
        (other, "no Ed25519"),
        (text, "no private key"),
        (public, "chmod 600"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_signer(path)
    for path, said in ((text, "no public key"), (tmp_path / "none", "cannot be read"), (files / "a", "no public key")):
        with pytest.raises(ConfigError, match=said):
            load_keyring([path])
