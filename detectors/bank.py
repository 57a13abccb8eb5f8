"""State of all series of one pool (nodes x latency SLIs) and the one step that moves it: `SeriesBank.close`.

Row 0 of every array is the pool as a whole (all nodes' requests together), nodes follow from row 1. Requests of a tick wait in a log until the
tick closes and are then counted, so neither arrival order nor framing can change a result. Every sum is of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import drift, evidence, ranks
from detectors.evidence import FAMILY, FASTER, SLOWER
from detectors.model import SLIS, PoolModel, Rows
from detectors.strata import stratum_count, stratum_of, uncached_tokens
from schemas.policy import Detection

__all__ = ["ACTIVE", "CENSORED", "EMPIRICAL", "EXTRAPOLATED", "FROZEN", "LEARNING", "BankTick", "SeriesBank"]

LEARNING, ACTIVE, FROZEN = 0, 1, 2
"""Codes of `BankTick.baseline`."""
EMPIRICAL, EXTRAPOLATED, CENSORED = 0, 1, 2
"""Codes of `BankTick.p999_kind`."""

_DAY_S = 86400.0
_PRIOR = 64.0
_CAP_NATS = 8.0


@dataclass(slots=True)
class BankTick:
    """Result of a tick; arrays (nodes, 4) with SLIs in the order of `schemas.batch.LATENCY_SLIS`.

    Attributes:
        n_tick, n: Samples in the tick and in the detection window, int64.
        baseline: LEARNING, ACTIVE or FROZEN, uint8.
        enough: The window holds at least `min_samples`.
        kl_nats, kl_mix_nats, kl_service_nats: KL(window || baseline) without its bias; the first is the sum of the other two.
        shift_nats: Mean shift of log-latency against the baseline, given each request's size; > 0 is slower.
        log_evidence, log_threshold: log of the Shiryaev-Roberts statistic for a slowdown and the value at which it alarms.
        alarm, improved, mix_alarm: Calibrated alarms: slower, faster, another mix of requests.
        p999_s, p999_lo_s, p999_hi_s, p999_kind: P99.9 of the window with an interval.
        threshold_s: Adaptive threshold of P99.9; `tail_above`: the tail is above what the baseline explains.
        pool: The same for the pool as a whole, arrays (1, 4); None inside itself.
    """

    n_tick: NDArray[np.int64]
    n: NDArray[np.int64]
    baseline: NDArray[np.uint8]
    enough: NDArray[np.bool_]
    kl_nats: NDArray[np.float64]
    kl_mix_nats: NDArray[np.float64]
    kl_service_nats: NDArray[np.float64]
    shift_nats: NDArray[np.float64]
    log_evidence: NDArray[np.float64]
    log_threshold: NDArray[np.float64]
    alarm: NDArray[np.bool_]
    improved: NDArray[np.bool_]
    mix_alarm: NDArray[np.bool_]
    p999_s: NDArray[np.float64]
    p999_lo_s: NDArray[np.float64]
    p999_hi_s: NDArray[np.float64]
    p999_kind: NDArray[np.uint8]
    threshold_s: NDArray[np.float64]
    tail_above: NDArray[np.bool_]
    pool: BankTick | None = None


class SeriesBank:
    """All series of one pool.

    Args:
        detection: Settings.
        tick_s: Length of a tick, seconds.
        open_slots: Ticks that may be open (receiving) at once.
    """

    def __init__(self, detection: Detection, tick_s: float, open_slots: int) -> None:
        self.detection = detection
        self.tick_s = tick_s
        self.open_slots = open_slots
        self.n_nodes = 0
        self._open: dict[int, list[Rows]] = {}
        self._closed: int | None = None
        self._log: list[Rows] = []
        self._strata = stratum_count(detection.max_strata)
        self.model = PoolModel(self._strata)
        self._per_block = max(1, round(detection.period_s / tick_s))
        self._lag = max(1, round(detection.lag_s / (self._per_block * tick_s)))
        self._log_a = evidence.log_threshold(_DAY_S / tick_s, detection.false_alarms_per_day)
        self._block: int | None = None
        self._allocate(8)

    def _allocate(self, rows: int) -> None:
        """Arrays of `rows` rows; kept values are copied over."""
        spec: dict[str, tuple[tuple[int, ...], type[np.generic], float]] = {
            "seen": ((SLIS, rows), np.int64, 0),
            "learned": ((SLIS, rows), np.bool_, 0),
            "offset": ((SLIS, rows), np.float32, 0),
            "base": ((SLIS, rows, ranks.BINS), np.float32, 0),
            "base_sum": ((SLIS, rows), np.float64, 0),
            "wobble": ((SLIS, rows, 2), np.float64, 0),
            "log_z": ((SLIS, rows, len(FAMILY)), np.float32, 0),
            "slow": ((SLIS, rows, len(SLOWER)), np.float32, 0),
            "fast": ((SLIS, rows, len(FASTER)), np.float32, 0),
            "bad_block": ((SLIS, rows), np.int64, -1),
            "ring": ((self._lag + 1, SLIS, rows, ranks.BINS), np.uint32, 0),
            "ring_sum": ((self._lag + 1, SLIS, rows), np.int64, 0),
        }
        flat: dict[str, tuple[tuple[int, ...], type[np.generic], float]] = {
            "born": ((rows,), np.int64, -1),
            "base_mix": ((rows, self._strata), np.float32, 0),
            "ring_mix": ((self._lag + 1, rows, self._strata), np.uint32, 0),
        }
        old: dict[str, NDArray[np.generic]] = getattr(self, "_arrays", {})
        self._arrays: dict[str, NDArray[np.generic]] = {}
        for name, (shape, dtype, fill) in (spec | flat).items():
            fresh = np.full(shape, fill, dtype)
            if name in old:
                fresh[tuple(slice(0, n) for n in old[name].shape)] = old[name]
            self._arrays[name] = fresh
        self._rows = rows

    def __getattr__(self, name: str) -> NDArray[np.generic]:
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(name) from None

    def add_node(self) -> int:
        """Index of a new node."""
        if self.n_nodes + 2 > self._rows:
            self._allocate(self._rows * 2)
        self.n_nodes += 1
        return self.n_nodes - 1

    def ingest(
        self,
        slot: int,
        node: NDArray[np.uint32],
        latency_s: NDArray[np.float32],
        prompt_tokens: NDArray[np.uint32],
        cached_tokens: NDArray[np.uint32],
        adapter_key: NDArray[np.uint32],
        output_tokens: NDArray[np.uint32] | None = None,
    ) -> None:
        """Adds requests of one tick that is still open.

        Args:
            slot: ts_ns // tick_ns.
            node: Index of the node, (n,).
            latency_s: Seconds, (4, n); NaN where unknown.
            prompt_tokens, cached_tokens, output_tokens: (n,), UNKNOWN_TOKENS where unknown. Without output tokens a shift to longer answers
                looks like a slower end-to-end latency.
            adapter_key: Stable hash of the adapter's name, 0 for none.

        Raises:
            ValueError: The slot is closed already, or a node does not exist.
        """
        if self._closed is not None and slot <= self._closed:
            raise ValueError(f"slot {slot} is closed (the last closed one is {self._closed})")
        if len(node) == 0:
            return
        if int(node.max()) >= self.n_nodes:
            raise ValueError(f"node {int(node.max())} was never added ({self.n_nodes} nodes)")
        tokens = uncached_tokens(prompt_tokens, cached_tokens)
        output = np.zeros(len(node), np.uint32) if output_tokens is None else output_tokens
        stratum = stratum_of(tokens, adapter_key, self.detection.max_strata)
        rows = Rows(node.astype(np.uint32), latency_s, tokens, output, stratum, np.full(len(node), slot, np.int64))
        self._open.setdefault(slot, []).append(rows)

    def close(self, slot: int, hold: NDArray[np.bool_]) -> BankTick:
        """Closes a tick and judges all series.

        Args:
            slot: The next one; slots are closed in order, each once, empty ones too.
            hold: Nodes whose baseline must not learn now, (nodes,).
        """
        if self._closed is not None and slot <= self._closed:
            raise ValueError(f"slot {slot} is closed (the last closed one is {self._closed})")
        self._closed = slot
        block = slot // self._per_block
        if self._block is not None and block != self._block:
            self._turn(block - self._block)
        self._block = block
        m = self.n_nodes + 1
        held = np.zeros(m, np.bool_)
        held[1:] = hold
        rows = Rows.join(self._open.pop(slot, []))
        present = np.bincount(rows.node + 1, minlength=m)[:m] > 0
        present[0] = len(rows) > 0
        self.born[:m][present & (self.born[:m] < 0)] = slot
        n_tick = np.zeros((SLIS, m), np.int64)
        for sli in range(SLIS):
            n_tick[sli] = np.bincount(rows.node[np.isfinite(rows.latency_s[sli])] + 1, minlength=m)[:m]
        n_tick[:, 0] = n_tick[:, 1:].sum(axis=1)
        self.seen[:, :m] += n_tick
        self._learn(rows, slot, held)
        self._count(rows)
        return self._judge(n_tick, held)

    # -- learning ----------------------------------------------------------------------------------------------------------------

    def _learn(self, rows: Rows, slot: int, held: NDArray[np.bool_]) -> None:
        """Keeps requests of nodes without a baseline, and gives a baseline to those that have enough."""
        m = self.n_nodes + 1
        learning = ~self.learned[:, :m].any(axis=0)
        if not learning[1:].any():
            return
        keep = learning[rows.node + 1] & ~held[rows.node + 1]
        if keep.any():
            self._log.append(rows.take(keep))
        old_enough = (self.born[:m] >= 0) & ((slot + 1 - self.born[:m]) * self.tick_s >= self.detection.learning_s)
        ready = learning & old_enough & (self.seen[:, :m].max(axis=0) >= self.detection.learning_samples)
        ready[0] = False
        if ready.any():
            self._graduate(ready)

    def _graduate(self, ready: NDArray[np.bool_]) -> None:
        m = self.n_nodes + 1
        log = Rows.join(self._log).canonical()
        if not self.model.known.any():
            self.model.fit(log)
            codes, measured = self.model.codes(log, np.zeros((SLIS, m), np.float32))
            self._locate(log, codes, measured)
            codes, measured = self.model.codes(log, self.offset[:, 1:m])
            self.model.learn(self.model.count(codes, measured, log.stratum))
        mine = log.take(ready[log.node + 1])
        rest = log.take(~ready[log.node + 1])
        self._log = [rest] if len(rest) else []
        codes, measured = self.model.codes(mine, np.zeros((SLIS, m), np.float32))
        self._locate(mine, codes, measured)
        codes, measured = self.model.codes(mine, self.offset[:, 1:m])
        counts, mix, sums = self._tally(mine, codes, measured)
        self.base[:, :m] += counts
        self.base_mix[:m] += mix
        self.base_sum[:, :m] += sums
        self.learned[:, :m] |= counts.sum(axis=-1) > 0
        self._refresh()

    def _locate(self, rows: Rows, codes: NDArray[np.int16], measured: NDArray[np.bool_]) -> None:
        """Each node's usual place: its median residual, in octaves."""
        for sli in range(SLIS):
            usable = measured[sli]
            node, code = rows.node[usable], codes[sli][usable]
            order = np.lexsort((code, node))
            counts = np.bincount(node, minlength=self.n_nodes)
            start = np.cumsum(counts) - counts
            some = counts > 0
            middle = code[order][(start + counts // 2)[some]]
            self.offset[sli, 1 : self.n_nodes + 1][some] = (middle.astype(np.float32) - ranks.CODES // 2) / 64

    # -- counting ----------------------------------------------------------------------------------------------------------------

    def _tally(
        self, rows: Rows, codes: NDArray[np.int16], measured: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Counts by node and bin (4, M, BINS), by node and stratum (M, S), and sums of residual codes (4, M); row 0 is the pool."""
        m = self.n_nodes + 1
        bins = self.model.bins(codes, measured, rows.stratum)
        node = rows.node.astype(np.intp) + 1
        counts = np.zeros((SLIS, m, ranks.BINS), np.int64)
        sums = np.zeros((SLIS, m), np.int64)
        for sli in range(SLIS):
            usable = bins[sli] != ranks.UNKNOWN_BIN
            key = node[usable] * ranks.BINS + bins[sli][usable]
            counts[sli] = np.bincount(key, minlength=m * ranks.BINS).reshape(m, ranks.BINS)
            off = codes[sli][usable] - self.model.centre[sli][rows.stratum[usable]]
            sums[sli] = np.rint(np.bincount(node[usable], weights=off, minlength=m)).astype(np.int64)
        mix = np.bincount(node * self._strata + rows.stratum, minlength=m * self._strata).reshape(m, self._strata)
        counts[:, 0] = counts[:, 1:].sum(axis=1)
        sums[:, 0] = sums[:, 1:].sum(axis=1)
        mix[0] = mix[1:].sum(axis=0)
        return counts, mix, sums

    def _count(self, rows: Rows) -> None:
        m = self.n_nodes + 1
        self._tick_counts = np.zeros((SLIS, m, ranks.BINS), np.int64)
        self._tick_sums = np.zeros((SLIS, m), np.int64)
        if not self.model.known.any():
            return
        rows = rows.take(self.learned[:, 1:m].any(axis=0)[rows.node])
        codes, measured = self.model.codes(rows, self.offset[:, 1:m])
        counts, mix, sums = self._tally(rows, codes, measured)
        self._tick_counts, self._tick_sums = counts, sums
        self.ring[0, :, :m] += counts.astype(np.uint32)
        self.ring_mix[0, :m] += mix.astype(np.uint32)
        self.ring_sum[0, :, :m] += sums

    # -- baseline ----------------------------------------------------------------------------------------------------------------

    def _turn(self, blocks: int) -> None:
        """A period is over: blocks move on, and what leaves the lag without an alarm since becomes baseline."""
        assert self._block is not None
        keep = float(np.exp2(-self._per_block * self.tick_s / self.detection.half_life_s))
        for step in range(min(blocks, self._lag + 1)):
            leaving = self._block + step - self._lag
            good = (self.bad_block < leaving) & self.learned
            counts = self.ring[-1]
            some = good & (counts.sum(axis=-1) > 0)
            self.base[some] = self.base[some] * np.float32(keep) + counts[some]
            self.base_sum[some] = self.base_sum[some] * keep + self.ring_sum[-1][some]
            mixed = good.any(axis=0) & (self.ring_mix[-1].sum(axis=-1) > 0)
            self.base_mix[mixed] = self.base_mix[mixed] * np.float32(keep) + self.ring_mix[-1][mixed]
            for name in ("ring", "ring_mix", "ring_sum"):
                array = self._arrays[name]
                array[1:] = array[:-1].copy()
                array[0] = 0
        self._refresh()

    def _refresh(self) -> None:
        """Recomputes what follows from baselines: normalisers of the node-tilted templates."""
        share = self.base_mix[0] + 1e-9
        weight = np.where(self.model.known, share / share.sum(), 0.0)
        total = weight.sum(axis=1, keepdims=True)
        weight = np.where(total > 0, weight / np.maximum(total, 1e-30), 1 / self._strata)
        self._templates = np.einsum("ls,lsgk->lgk", weight, self.model.template)
        self._weight = weight
        centre = self._templates[:, FAMILY.index((1.0, 0.0))]
        self._p0 = self.base + _PRIOR * centre[:, None, :].astype(np.float32) + np.float32(0.5)
        self._p0 /= self._p0.sum(axis=-1, keepdims=True)
        tilt = self._p0 / centre[:, None, :].astype(np.float32)
        self.log_z[:] = np.log(tilt @ self._templates.transpose(0, 2, 1).astype(np.float32))
        self._log_templates = np.log(self._templates).astype(np.float32)

    # -- judging -----------------------------------------------------------------------------------------------------------------

    def _judge(self, n_tick: NDArray[np.int64], held: NDArray[np.bool_]) -> BankTick:
        m = self.n_nodes + 1
        learned = self.learned[:, :m]
        counts = self._tick_counts.astype(np.float32)
        total = counts.sum(axis=-1)
        alarm = np.zeros((SLIS, m), np.bool_)
        improved = alarm.copy()
        log_evidence = np.full((SLIS, m), -np.inf)
        if learned.any():
            log_p = counts @ self._log_templates.transpose(0, 2, 1) - total[..., None] * self.log_z[:, :m]
            null = evidence.band_null(log_p, self._band(m))
            cap = float(np.exp(self._log_a + _CAP_NATS))
            happened = (total > 0) & learned
            for name, members in (("slow", SLOWER), ("fast", FASTER)):
                evidence.update(self._arrays[name][:, :m], log_p[..., members] - null[..., None], happened, cap)
            log_evidence = evidence.mixture_log(self.slow[:, :m], np.full(len(SLOWER), 1 / len(SLOWER)))
            log_faster = evidence.mixture_log(self.fast[:, :m], np.full(len(FASTER), 1 / len(FASTER)))
            alarm = learned & (log_evidence >= self._log_a)
            improved = learned & (log_faster >= self._log_a)
        self.bad_block[:, :m][alarm | held] = self._block
        baseline = np.where(learned, np.where(alarm | held, FROZEN, ACTIVE), LEARNING).astype(np.uint8)
        window, window_mix, window_sum = self._window(m)
        n = window.sum(axis=-1)
        n_base = self.base[:, :m].sum(axis=-1)
        service = drift.kl_nats(window, self.base[:, :m]) - drift.bias_nats(ranks.BINS, n, n_base)
        n_mix, n_base_mix = window_mix.sum(axis=-1), self.base_mix[:m].sum(axis=-1)
        mix = drift.kl_nats(window_mix, self.base_mix[:m]) - drift.bias_nats(self._strata, n_mix, n_base_mix)
        service = np.where((n > 0) & (n_base > 0), service, np.nan)
        mixes = np.where((n_mix > 0) & (n_base_mix > 0), mix, np.nan)[None] + np.zeros((SLIS, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = (window_sum / n - self.base_sum[:, :m] / n_base) * ranks.NATS_PER_CODE
        nothing = np.full((SLIS, m), np.nan)
        tick = BankTick(
            n_tick, n.astype(np.int64), baseline, n >= self.detection.min_samples, mixes + service, mixes, service, shift, log_evidence,
            np.full((SLIS, m), self._log_a), alarm, improved, np.zeros((SLIS, m), np.bool_), nothing, nothing, nothing,
            np.zeros((SLIS, m), np.uint8), nothing, np.zeros((SLIS, m), np.bool_),
        )  # fmt: skip
        nodes, pool = _split(tick)
        nodes.pool = pool
        return nodes

    def _band(self, m: int) -> NDArray[np.float32]:
        spread = self.model.spread()[:, None]
        n_base = np.maximum(self.base[:, :m].sum(axis=-1), 1.0)
        place = (self._weight**2 * self.model.variance()).sum(axis=1, keepdims=True)
        error = 3 * np.sqrt(spread**2 / n_base + place)
        return np.asarray(np.maximum(self.detection.wobble_floor_ratio, 0.06) + error, np.float32)

    def _window(self, m: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
        """The newest blocks that together hold enough samples: counts (4, m, BINS), mix (m, S), sums (4, m)."""
        window = np.cumsum(self.ring[:, :, :m], axis=0, dtype=np.uint64)
        mix = np.cumsum(self.ring_mix[:, :m], axis=0, dtype=np.uint64)
        sums = np.cumsum(self.ring_sum[:, :, :m], axis=0)
        need = self.detection.min_samples
        depth = np.minimum((window.sum(axis=-1) < need).sum(axis=0), self._lag)
        depth_mix = np.minimum((mix.sum(axis=-1) < need).sum(axis=0), self._lag)
        return (
            np.take_along_axis(window, depth[None, ..., None], axis=0)[0],
            np.take_along_axis(mix, depth_mix[None, :, None], axis=0)[0],
            np.take_along_axis(sums, depth[None], axis=0)[0],
        )

    def reset_evidence(self, nodes: NDArray[np.bool_]) -> None:
        """Forgets the evidence against nodes (bool (nodes,)), for example after a breaker closed."""
        rows = np.flatnonzero(nodes) + 1
        self.slow[:, rows] = 0
        self.fast[:, rows] = 0

    def rebase(self, nodes: NDArray[np.bool_]) -> None:
        """Forgets baseline and evidence of nodes (bool (nodes,)): a deploy, or an operator says that this is normal now."""
        rows = np.flatnonzero(nodes) + 1
        self.reset_evidence(nodes)
        for name in ("seen", "learned", "offset", "base", "base_sum", "wobble"):
            self._arrays[name][:, rows] = 0
        self.ring[:, :, rows] = 0
        self.ring_sum[:, :, rows] = 0
        self.ring_mix[:, rows] = 0
        self.base_mix[rows] = 0
        self.born[rows] = -1


def _split(tick: BankTick) -> tuple[BankTick, BankTick]:
    """Nodes (rows 1 and on) and pool (row 0), each transposed to (rows, 4)."""
    names = [name for name in BankTick.__slots__ if name != "pool"]
    return (
        BankTick(**{name: getattr(tick, name)[:, 1:].T for name in names}),
        BankTick(**{name: getattr(tick, name)[:, :1].T for name in names}),
    )
