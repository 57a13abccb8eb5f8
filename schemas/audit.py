"""The audit of decisions: a hash chain per pool in log order, and signed anchors that say how far it reaches.

hash_n = SHA-256(domain, hash_(n-1), pool, n, partition, offset, decision), each part with its length; hash_0 binds fleet and
pool.

A chain alone reveals neither a cut end nor a history that was written anew as a whole: so an anchor, signed with a key that the
judge does not have, repeats (pool, n, hash_n) every minute, and copies of anchors belong where the file's owner cannot write.

The file is NDJSON; an entry holds the decision's bytes exactly as the log has them.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from schemas.errors import SchemaError
from schemas.signing import Signer

__all__ = ["Anchor", "AuditEntry", "Chain", "decode_line", "genesis", "link", "pool_of", "sign_anchor"]

_DOMAIN = b"slodrift-audit-v1"
_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class AuditEntry(msgspec.Struct, tag_field="kind", tag="audit_entry", kw_only=True, frozen=True):
    """One decision of the log; `hash` is the chain's after it, `prev` the one before."""

    pool: str
    n: _Count
    """Place in the pool's chain, from 1."""
    partition: _Count
    offset: _Count
    prev: _Hash
    hash: _Hash
    decision: msgspec.Raw


class Anchor(msgspec.Struct, tag_field="kind", tag="audit_anchor", kw_only=True, frozen=True):
    """The chain of `pool` reached `n` decisions and `hash` at `t_ms` (Unix milliseconds)."""

    fleet: str
    pool: str
    n: _Count
    hash: _Hash
    t_ms: _Count


class _Pool(msgspec.Struct, tag_field="kind", tag="decision"):
    pool: str


_lines = msgspec.json.Decoder(AuditEntry | Anchor)
_pools = msgspec.json.Decoder(_Pool)


def genesis(fleet: str, pool: str) -> str:
    """Hash before the first decision."""
    return _digest(fleet.encode(), pool.encode())


def link(prev: str, pool: str, n: int, partition: int, offset: int, decision: bytes) -> str:
    """Hash after one more decision."""
    return _digest(bytes.fromhex(prev), pool.encode(), b"%d/%d/%d" % (n, partition, offset), decision)


def _digest(*parts: bytes) -> str:
    hasher = hashlib.sha256(_DOMAIN)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


class Chain:
    """End of one pool's chain.

    Args:
        fleet, pool: Whose.
        n, hash: Where it stands; a new one by default.
    """

    def __init__(self, fleet: str, pool: str, n: int = 0, hash: str | None = None) -> None:  # noqa: A002 - its name in the file
        self.fleet, self.pool, self.n = fleet, pool, n
        self.hash = genesis(fleet, pool) if hash is None else hash

    def append(self, partition: int, offset: int, decision: bytes) -> bytes:
        """Line of the entry for one more decision, without a newline."""
        prev, self.n = self.hash, self.n + 1
        self.hash = link(prev, self.pool, self.n, partition, offset, decision)
        entry = AuditEntry(
            pool=self.pool,
            n=self.n,
            partition=partition,
            offset=offset,
            prev=prev,
            hash=self.hash,
            decision=msgspec.Raw(decision),
        )
        return msgspec.json.encode(entry)

    def anchor(self, t_ms: int) -> Anchor:
        """What to sign now."""
        return Anchor(fleet=self.fleet, pool=self.pool, n=self.n, hash=self.hash, t_ms=t_ms)


def sign_anchor(anchor: Anchor, signer: Signer) -> bytes:
    """Line of a signed anchor, without a newline."""
    return signer.sign("slodrift-anchor-v1", msgspec.json.encode(anchor))


def pool_of(record: bytes) -> str | None:
    """Pool of a decision, None for what else is in the decision log."""
    try:
        return _pools.decode(record).pool if b"\n" not in record else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode_line(raw: bytes) -> AuditEntry | Anchor:
    """One line of the file; signatures are not looked at here.

    Raises:
        SchemaError: With reason ``bad_audit_line``.
    """
    try:
        return _lines.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise SchemaError("bad_audit_line", str(exc)) from None
