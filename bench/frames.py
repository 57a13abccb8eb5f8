"""Request frames for the live benchmarks: encoded once, then sent again and again under a new time and number."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from schemas.batch import UNKNOWN_TOKENS, RequestBatch
from schemas.frame import FrameHeader, encode_request_frame

__all__ = ["Template", "make_template"]

_SEQ, _T0_NS = 0x71727374, 0x1122334455667788


@dataclass(frozen=True)
class Template:
    """A frame of a node without its sequence number and time."""

    pool: str
    parts: tuple[bytes, bytes, bytes]

    def at(self, seq: int, t0_ns: int) -> bytes:
        """The frame; `seq` below 2**31."""
        head, middle, tail = self.parts
        return b"".join((head, struct.pack(">I", _SEQ + seq), middle, struct.pack(">Q", t0_ns), tail))


def make_template(pool: str, node: str, rows: int, span_s: float, rng: np.random.Generator) -> Template:
    """A frame of `rows` requests with all four latencies, spread evenly over `span_s` from its time on."""
    unknown = np.full(rows, UNKNOWN_TOKENS, np.uint32)
    tokens = rng.integers(2, 4000, (2, rows)).astype(np.uint32)
    centre = np.log([[0.1], [0.02], [0.01], [0.5]])
    latency_s = np.exp(rng.normal(centre, 0.4, (4, rows)))
    latency_s[0] += 1e-4 * tokens[0]
    latency_s[3] += 5e-3 * tokens[1]
    offset_us = np.sort(rng.integers(0, max(1, int(span_s * 1e6)), rows))
    offset_us[0] = 0
    batch = RequestBatch(
        pool=pool, nodes=[node], node=np.zeros(rows, np.uint32), ts_ns=_T0_NS + offset_us * 1000,
        latency_s=latency_s.astype(np.float32), outcome=np.zeros(rows, np.uint8), prompt_tokens=tokens[0],
        output_tokens=tokens[1], cached_tokens=unknown, batch_size=unknown, probe=np.full(rows, -1, np.int8), adapters=[],
        adapter=unknown, tenants=[], tenant=unknown, session=rng.integers(1, 1 << 30, rows).astype(np.uint32),
        kv_mismatch=np.zeros(rows, np.bool_),
    )  # fmt: skip
    raw = encode_request_frame(FrameHeader(pool=pool, node=node, boot_id="b", seq=_SEQ), batch)
    head, rest = raw.split(struct.pack(">I", _SEQ), 1)
    middle, tail = rest.split(struct.pack(">Q", _T0_NS), 1)
    return Template(pool, (head, middle, tail))
