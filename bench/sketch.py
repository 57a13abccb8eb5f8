"""`slodrift bench sketch`: frames of weighted rows against frames of requests, at the rates of busy nodes.

    Node, once a second: requests -> frames of 1,000 rows, or condense -> one sketch frame. CPU for each request.
    Judge, tick by tick: the same requests as frames and as sketches, in turn, by two judges. CPU for each, the median tick.

Two workloads, since what sketches save depends on how alike requests are: prompts and answers spread over five octaves, and all
of one length. Raw frames carry no session, as sketches do not. Bytes are those of the message, before Kafka compresses it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from bench.report import Report
from bench.scale_load import LoadShape, batches
from schemas.batch import RequestBatch
from schemas.frame import FrameHeader, encode_request_frame
from schemas.policy_file import parse_policy
from schemas.sketch import condense
from schemas.topics import FRAMES
from schemas.windows import encode_windows
from streams.worker.partition import JudgePartition
from streams.worker.policy_factory import PolicyFactory

__all__ = ["Case", "measure", "run"]

_TICK_S, _LEARN_TICKS, _NODES, _ROWS = 5, 6, 2, 1000
_POLICY = """\
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*":
    mode: enforce
    slo: {ttft_s: {threshold: 1.0, objective: 0.99}}
    detection: {learning_s: 20}
"""
_CUTS = {"ttft_s": [1.0]}
_EXACT = ("node", "n", "n_tick", "p999_s", "p999_lo_s", "p999_hi_s")


@dataclass(frozen=True)
class _Record:
    offset: int
    timestamp: int
    value: bytes


@dataclass
class _Way:
    """One of the two ways, from the node to the windows."""

    judge: JudgePartition = field(
        default_factory=lambda: JudgePartition(
            FRAMES.name, 0, PolicyFactory(parse_policy(_POLICY, "bench")), epoch=0, generation=1
        )
    )
    node_ns: list[float] = field(default_factory=list)
    judge_ns: list[float] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    windows: list[dict[str, Any]] = field(default_factory=list)

    def send(self, batch: RequestBatch, second: int, *, sketch: bool) -> list[bytes]:
        """What the node of `batch` does with the requests of a second."""
        began = time.process_time()
        few = condense(batch, cuts=_CUTS) if sketch else batch
        cuts = range(0, len(few), len(few) if sketch else _ROWS)
        frames = []
        for part, start in enumerate(cuts):
            rows = few if sketch else few.take(slice(start, start + _ROWS))
            header = FrameHeader(pool=batch.pool, node=batch.nodes[0], boot_id="b", seq=second * 1000 + part)
            frames.append(encode_request_frame(header, rows))
        self.node_ns.append((time.process_time() - began) * 1e9 / len(batch))
        self.size, self.rows = self.size + sum(map(len, frames)), self.rows + len(few)
        return frames

    def step(self, frames: list[bytes], tick: int, requests: int) -> None:
        """Judge a tick's frames."""
        records = [_Record(tick * 100_000 + i, tick * _TICK_S * 1000, raw) for i, raw in enumerate(frames)]
        began = time.process_time()
        out = [output for i in range(0, len(records), 64) for output in self.judge.step(records[i : i + 64]).outputs]
        found = [output.windows.columns() for output in out if output.windows is not None]
        for output, columns in zip(out, found, strict=False):
            encode_windows(output.pool, round(1000 * output.t), columns)
        self.judge_ns.append((time.process_time() - began) * 1e9 / requests)
        self.windows += found


@dataclass(frozen=True)
class Case:
    """What was measured of one rate: for each request, raw and as sketches, and whether the windows say the same."""

    rows_a_frame: float
    bytes_raw: float
    bytes_sketch: float
    judge_raw_ns: float
    judge_sketch_ns: float
    node_raw_ns: float
    node_sketch_ns: float
    same: bool


def measure(rate: int, seed: int, ticks: int, *, alike: bool) -> Case:
    """One rate of a node, requests/s, over `ticks` ticks after those in which baselines are learned."""
    shape = LoadShape("pool", _NODES, rate, tick_s=1.0)
    raw, sketch = _Way(), _Way()
    requests = rate * _NODES * _TICK_S
    seconds = batches(shape, range((_LEARN_TICKS + ticks) * _TICK_S), seed)
    for tick in range(_LEARN_TICKS + ticks):
        if tick == _LEARN_TICKS:
            for way in (raw, sketch):
                way.node_ns, way.judge_ns, way.size, way.rows = [], [], 0, 0
        sent: tuple[list[bytes], list[bytes]] = [], []
        for _ in range(_TICK_S * _NODES):
            second, _, batch = next(seconds)
            batch = replace(batch, session=np.zeros(rate, np.uint32))
            if alike:
                batch = replace(batch, prompt_tokens=np.full(rate, 500, np.uint32), output_tokens=np.full(rate, 100, np.uint32))
            for way, frames, condensed in ((raw, sent[0], False), (sketch, sent[1], True)):
                frames += way.send(batch, second, sketch=condensed)
        for way, frames in ((raw, sent[0]), (sketch, sent[1]))[:: 1 if tick % 2 else -1]:
            way.step(frames, tick, requests)
    n = requests * ticks
    return Case(
        sketch.rows / (ticks * _TICK_S * _NODES), raw.size / n, sketch.size / n, median(raw.judge_ns), median(sketch.judge_ns),
        median(raw.node_ns), median(sketch.node_ns), _same(raw.windows, sketch.windows),
    )  # fmt: skip


def _same(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> bool:
    """Whether numbers of requests and tails are equal, window by window."""
    if len(one) != len(two) or not one:
        return False
    pairs = [(a[name], b[name]) for a, b in zip(one, two, strict=True) for name in _EXACT]
    return all(np.array_equal(a, b, equal_nan=not isinstance(a, list)) for a, b in pairs)


_BARS = {
    ("spread", 10_000): (1.5, 1.4),
    ("spread", 50_000): (4.0, 3.0),
    ("alike", 10_000): (15.0, 3.0),
    ("alike", 50_000): (60.0, 8.0),
}
"""Times fewer bytes, times less CPU of the judge, at least."""


def run(seed: int = 0, *, quick: bool = False) -> Report:
    """Both workloads at three rates; `quick` leaves the highest away."""
    rates = (1_000, 10_000) if quick else (1_000, 10_000, 50_000)
    report = Report(
        "sketch", "Sketch frames against frames of requests; bytes and ns of CPU for each request",
        ["lengths", "node's req/s", "rows a sketch", "bytes", "sketched", "fewer x", "judge", "judge, sketched", "less x", "node",
         "node, sketched"],
        seed,
    )  # fmt: skip
    for kind in ("spread", "alike"):
        for rate in rates:
            case = measure(rate, seed, 4 if quick else 8, alike=kind == "alike")
            fewer, less = case.bytes_raw / case.bytes_sketch, case.judge_raw_ns / case.judge_sketch_ns
            report.add(
                kind, f"{rate:,}", round(case.rows_a_frame), case.bytes_raw, case.bytes_sketch, fewer, round(case.judge_raw_ns),
                round(case.judge_sketch_ns), less, round(case.node_raw_ns), round(case.node_sketch_ns),
            )  # fmt: skip
            report.bar(f"{kind}, {rate:,}/s: n, n_tick and P99.9 of all windows equal", case.same)
            if bar := _BARS.get((kind, rate)):
                report.bar(f"{kind}, {rate:,}/s: {fewer:.1f} times fewer bytes >= {bar[0]:g}", fewer >= bar[0])
                report.bar(f"{kind}, {rate:,}/s: {less:.1f} times less CPU of the judge >= {bar[1]:g}", less >= bar[1])
    return report
