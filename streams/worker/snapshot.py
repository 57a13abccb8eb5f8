"""Snapshots of a partition's state, in a compacted topic.

A snapshot says: this is the state after everything below `next_offset`. Offsets are committed only up to the newest durable
snapshot, so a new owner restores it and reads on; no frame counts twice and none is missed.

One snapshot is one record with the partition's number as key, or, where it does not fit a message, that record and further ones
with keys `partition/slot/i`; the slot alternates, so a half-written snapshot never destroys the one before. The record with
the bare key is written last and makes it valid: it carries the number of parts and the digest of the whole. Readers choose the
highest (epoch, next_offset), so what a former owner still writes is passed over.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from schemas.errors import SchemaError
from schemas.results import Decision

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["MAX_PART_BYTES", "Snapshot", "choose", "decode", "pack", "to_records"]

MAX_PART_BYTES = 900_000
"""Fits the default message size of brokers and clients (1 MB)."""
_LEVEL = 1
_PIECE_BYTES = 1 << 20
_HEADER = "slodrift.snapshot"


class Snapshot(msgspec.Struct, kw_only=True):
    """State of one partition of `telemetry.frames`.

    Attributes:
        epoch: Of the writer.
        next_offset: First offset that is not in the state.
        log_offset: First offset of the partition's decision log that may hold decisions made after this state.
        generation: Generation of the decision log.
        duplicates: `DuplicateFilter.dump`.
        pools: `PoolJudge.snapshot` by pool.
        live: Newest decision of every subject that is not closed.
        version: Version of the newest decision, by pool.
        n_eligible: Nodes with fresh telemetry, by pool.
        heard: When something last came for a pool, and its clock then (`JudgePartition.heard`).
    """

    format: int = 1
    epoch: int
    next_offset: int
    log_offset: int
    generation: int = 1
    duplicates: bytes = b""
    pools: dict[str, bytes] = {}
    live: list[Decision] = []
    version: dict[str, tuple[int, int, int]] = {}
    n_eligible: dict[str, int] = {}
    heard: dict[str, tuple[int, int]] = {}


class _Manifest(msgspec.Struct, kw_only=True):
    epoch: int
    next_offset: int
    slot: int
    parts: int
    sha256: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)
_manifest_decoder = msgspec.json.Decoder(_Manifest)


def pack(snapshot: Snapshot) -> bytes:
    """Compressed bytes; a few milliseconds per megabyte, so call it in a thread."""
    squeeze = zstd.ZstdCompressor(level=_LEVEL)
    squeezed = [squeeze.compress(piece) for piece in _pieces(snapshot)]
    return b"".join([*squeezed, squeeze.flush()])


def _pieces(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The snapshot as MessagePack, in pieces: the pools' states are most of it, and are not copied once more."""
    names = snapshot.__struct_fields__
    yield bytes([0x80 | len(names)])  # a map of fewer than 16 entries
    for name in names:
        yield _encoder.encode(name)
        if name != "pools":
            yield _encoder.encode(getattr(snapshot, name))
            continue
        yield b"\xdf" + struct.pack(">I", len(snapshot.pools))
        for pool, state in snapshot.pools.items():
            yield _encoder.encode(pool) + b"\xc6" + struct.pack(">I", len(state))
            view = memoryview(state)
            for start in range(0, len(state), _PIECE_BYTES):  # compressors buffer what they are given at once
                yield view[start : start + _PIECE_BYTES]


def decode(packed: bytes) -> Snapshot:
    """Inverse of `pack`.

    Raises:
        SchemaError: With reason ``bad_snapshot``.
    """
    try:
        snapshot = _decoder.decode(zstd.decompress(packed))
    except (msgspec.DecodeError, zstd.ZstdError, UnicodeDecodeError) as exc:
        raise SchemaError("bad_snapshot", str(exc)) from None
    if snapshot.format != 1:
        raise SchemaError("bad_snapshot", f"format {snapshot.format}, this worker knows 1")
    return snapshot


def to_records(
    partition: int, snapshot: Snapshot, packed: bytes, slot: int, max_part_bytes: int = MAX_PART_BYTES
) -> list[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    """(key, value, headers) of every record, in the order in which they must be written."""
    parts = [packed[i : i + max_part_bytes] for i in range(0, len(packed), max_part_bytes)] or [b""]
    manifest = _Manifest(
        epoch=snapshot.epoch, next_offset=snapshot.next_offset, slot=slot, parts=len(parts),
        sha256=hashlib.sha256(packed).hexdigest(),
    )  # fmt: skip
    headers = [(_HEADER, msgspec.json.encode(manifest))]
    rest = [(f"{partition}/{slot}/{i}".encode(), part, headers) for i, part in enumerate(parts) if i > 0]
    return [*rest, (str(partition).encode(), parts[0], headers)]


def choose(partition: int, records: Iterable[Any]) -> tuple[bytes, int] | None:
    """The newest complete snapshot among the records of one partition of the topic.

    Args:
        partition: Whose snapshots.
        records: In offset order, with `key()`, `value()`, `headers()` as confluent-kafka gives them.

    Returns:
        (packed bytes, slot of the snapshot), or None when there is none.
    """
    parts: dict[tuple[str, int], bytes] = {}  # (sha256, index): a record belongs to the snapshot that its header names
    manifests: dict[str, _Manifest] = {}
    for record in records:
        raw = dict(record.headers() or ()).get(_HEADER)
        if raw is None or record.value() is None:
            continue
        try:
            manifest = _manifest_decoder.decode(raw)
        except msgspec.DecodeError:
            continue
        key = record.key().decode("utf-8", "replace")
        if key == str(partition):
            parts[manifest.sha256, 0] = record.value()
            manifests[manifest.sha256] = manifest
        elif key.startswith(f"{partition}/"):
            parts[manifest.sha256, int(key.rsplit("/", 1)[1])] = record.value()
    for manifest in sorted(manifests.values(), key=lambda m: (m.epoch, m.next_offset), reverse=True):
        found = [parts.get((manifest.sha256, i)) for i in range(manifest.parts)]
        packed = b"".join(part for part in found if part is not None)
        if None not in found and hashlib.sha256(packed).hexdigest() == manifest.sha256:
            return packed, manifest.slot
    return None
