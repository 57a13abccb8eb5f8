"""State of all series of one pool (nodes x latency SLIs) and the one step that moves it: `SeriesBank.close`.

Row 0 of every array is the pool as a whole (all nodes' requests together), nodes follow from row 1. Requests of a tick wait as rows until the tick
closes and are then counted, so neither the order of arrival nor the framing can change a result: every sum is a sum of integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, drift, evidence, histogram, learning, mix, peers, ranks, seed, tail
from detectors.baseline import ACTIVE, FROZEN, LEARNING
from detectors.evidence import FASTER, SLOWER
from detectors.model import PoolModel
from detectors.result import BankTick
from detectors.rows import Rows
from detectors.state import SLIS, BankState
from detectors.strata import stratum_count, stratum_of, uncached_tokens
from detectors.tail import CENSORED, EMPIRICAL, EXTRAPOLATED
from schemas.policy import Detection

__all__ = ["ACTIVE", "CENSORED", "EMPIRICAL", "EXTRAPOLATED", "FROZEN", "LEARNING", "BankTick", "SeriesBank"]

_DAY_S = 86400.0
_CAP_NATS = 8.0
_PENDING_BLOCKS = 2
"""Residuals join the pool's model after this many blocks without an alarm of the pool."""


class SeriesBank:
    """All series of one pool.

    Args:
        detection: Settings.
        tick_s: Length of a tick, seconds.
        open_slots: Ticks that may be receiving at once; more is a caller's error.

    >>> import numpy as np
    >>> from schemas.policy import Detection
    >>> bank = SeriesBank(Detection(), tick_s=5.0, open_slots=3)
    >>> node, rng, unknown = bank.add_node(), np.random.default_rng(1), np.full(50, 2**32 - 1, np.uint32)
    >>> def tick(slot, slowdown):
    ...     seconds = np.tile(slowdown * rng.lognormal(-2, 0.3, 50), (4, 1)).astype(np.float32)
    ...     bank.ingest(slot, np.zeros(50, np.uint32), seconds, unknown, unknown, np.zeros(50, np.uint32))
    ...     return bank.close(slot, hold=np.zeros(1, bool))
    >>> calm = [tick(slot, 1.0) for slot in range(60)]
    >>> bool(calm[-1].alarm.any()), bool(tick(60, 3.0).alarm.all())
    (False, True)
    """

    def __init__(self, detection: Detection, tick_s: float, open_slots: int) -> None:
        self.detection = detection
        self.tick_s = tick_s
        self.open_slots = open_slots
        self.n_nodes = 0
        self.model = PoolModel(stratum_count(detection.max_strata))
        self._per_block = max(1, round(detection.period_s / tick_s))
        self._block_s = self._per_block * tick_s
        self._log_a = evidence.log_threshold(_DAY_S / tick_s, detection.false_alarms_per_day)
        kappa = detection.kappa
        self._kappa = (
            tail.kappa_for(detection.false_alarms_per_day * self._block_s / _DAY_S, "gumbel") if kappa is None else kappa
        )
        lag = max(1, round(detection.lag_s / self._block_s))
        self._state = BankState.empty(8, lag + 1, self.model.strata)
        self._open: dict[int, list[Rows]] = {}
        self._closed: int | None = None
        self._log = Rows.none()
        self._pending = np.zeros((_PENDING_BLOCKS + 1, *self.model.hist.shape), np.float32)
        self._follow()

    # -- input ---------------------------------------------------------------------------------------------------------------

    def add_node(self) -> int:
        """Index of a new node."""
        if self.n_nodes + 2 > self._state.rows:
            self._state = self._state.grown(self._state.rows * 2)
            self._follow()
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
            prompt_tokens: (n,), UNKNOWN_TOKENS where unknown.
            cached_tokens: The same, of the prompt tokens found in the prefix cache.
            adapter_key: Stable hash of the adapter's name, 0 for none, (n,).
            output_tokens: As `prompt_tokens`. Without them a shift to longer answers looks like a slower end-to-end latency.

        Raises:
            ValueError: The slot is closed, too many are open, or a node was never added.
        """
        if self._closed is not None and slot <= self._closed:
            raise ValueError(f"slot {slot} is closed (the last closed one is {self._closed})")
        if len(node) == 0:
            return
        if int(node.max()) >= self.n_nodes:
            raise ValueError(f"node {int(node.max())} was never added (there are {self.n_nodes})")
        if slot not in self._open and len(self._open) >= self.open_slots:
            raise ValueError(
                f"slot {slot} would be the {len(self._open) + 1}th open one, {self.open_slots} are allowed: close some"
            )
        tokens = uncached_tokens(prompt_tokens, cached_tokens)
        output = np.zeros(len(node), np.uint32) if output_tokens is None else output_tokens
        stratum = stratum_of(tokens, adapter_key, self.detection.max_strata)
        rows = Rows(node.astype(np.uint32), latency_s, tokens, output, stratum, np.full(len(node), slot, np.int64))
        self._open.setdefault(slot, []).append(rows)

    # -- one tick ------------------------------------------------------------------------------------------------------------

    def close(self, slot: int, hold: NDArray[np.bool_]) -> BankTick:
        """Closes a tick and judges all series.

        Args:
            slot: Slots are closed in order, each once; ones left out count as empty.
            hold: Nodes whose baseline must not learn now, (nodes,).

        Raises:
            ValueError: The slot is closed already.
        """
        if self._closed is not None and slot <= self._closed:
            raise ValueError(f"slot {slot} is closed (the last closed one is {self._closed})")
        state, m = self._state, self.n_nodes + 1
        block = slot // self._per_block
        if self._closed is not None:
            for over in range(max(self._closed // self._per_block, block - len(state.blocks) - 1), block):
                self._turn(over)
        self._closed = slot
        held = np.concatenate([[False], hold])
        rows = Rows.join(self._open.pop(slot, []))
        n_tick = self._raw(rows, slot)
        self._learn(rows, slot, held)
        known = rows.take(state.learned[:, 1:m].any(axis=0)[rows.node])
        (counts, sums, mixes), codes, measured = learning.tally(self.model, known, state.offset, m)
        alarm, improved, log_evidence = self._weigh(counts)
        mix_alarm = self._weigh_mix(mixes)
        if self.detection.method == "seed":
            alarm, improved = self._seed_alarm(m), np.zeros_like(alarm)
        bad = alarm | held
        state.bad_block[:, :m][bad] = block
        state.drift_since[:, :m] = np.where(alarm, np.where(state.drift_since[:, :m] < 0, slot, state.drift_since[:, :m]), -1)
        baseline.add_wobble(state, sums, counts.sum(axis=-1), self._spread)
        state.blocks[0, :, :m] += counts.astype(np.uint32)
        state.block_sum[0, :, :m] += sums
        state.block_mix[0, :m] += mixes.astype(np.uint32)
        clean = ~bad[:, 1:].any(axis=0)
        if clean.all() and len(known):
            self._pending[0] += self.model.count(codes, measured, known.stratum)
        elif len(known):
            keep = clean[known.node]
            self._pending[0] += self.model.count(codes[:, keep], measured[:, keep], known.stratum[keep])
        return self._report(slot, n_tick, bad, alarm, improved, mix_alarm, log_evidence)

    def _raw(self, rows: Rows, slot: int) -> NDArray[np.int64]:
        """Counts latencies as they are, (4, m), into the fine histograms too."""
        state, m = self._state, self.n_nodes + 1
        node = rows.node.astype(np.intp) + 1
        present = np.bincount(node, minlength=m) > 0
        present[0] = len(rows) > 0
        state.born[:m][present & (state.born[:m] < 0)] = slot
        n_tick = np.zeros((SLIS, m), np.int64)
        for sli in range(SLIS):
            measured = np.isfinite(rows.latency_s[sli])
            who, seconds = node[measured], rows.latency_s[sli][measured]
            n_tick[sli] = np.bincount(who, minlength=m)
            histogram.add(state.fine[sli], who, seconds)
            histogram.add(state.fine[sli], np.zeros(len(who), np.intp), seconds)
        n_tick[:, 0] = n_tick[:, 1:].sum(axis=1)
        state.seen[:, :m] += n_tick
        return n_tick

    def _learn(self, rows: Rows, slot: int, held: NDArray[np.bool_]) -> None:
        """Keeps requests of nodes without a baseline, and gives one to those that have enough."""
        state, m = self._state, self.n_nodes + 1
        new = ~state.learned[:, :m].any(axis=0)
        new[0] = False
        if not new.any():
            return
        keep = new[rows.node + 1] & ~held[rows.node + 1]
        if keep.any():
            ticks = max(1.0, self.detection.learning_s / self.tick_s)
            self._log = Rows.join([self._log, rows.take(keep).thinned(int(learning.ROWS_PER_NODE / ticks) + 1)])
        age_s = (slot + 1 - state.born[:m]) * self.tick_s
        enough = state.seen[:, :m].max(axis=0) >= self.detection.learning_samples
        ready = new & (state.born[:m] >= 0) & (age_s >= self.detection.learning_s) & enough
        ready &= np.bincount(self._log.node + 1, minlength=m) > 0
        if ready.any():
            self._log = learning.graduate(state, self.model, self._log, ready, self.tick_s)
            self._follow()

    def _follow(self) -> None:
        """Recomputes what follows from the model and the baselines."""
        state = self._state
        weight = self.model.weights(state.base_mix[0])
        self._spread = self.model.spread()
        self._place = (np.square(weight) * self.model.variance()).sum(axis=1)
        shapes = np.einsum("ls,lsgk->lgk", weight, self.model.template)
        self._log_shapes, state.log_z[:] = evidence.tilt(shapes, state.base)

    # -- judging -------------------------------------------------------------------------------------------------------------

    def _weigh(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
        """Alarms of either direction and the log of the statistic for a slowdown, each (4, m)."""
        state, m = self._state, self.n_nodes + 1
        learned = state.learned[:, :m]
        total = counts.sum(axis=-1)
        happened = learned & (total > 0)
        if happened.any():
            band = baseline.band_nats(state, m, self.detection.wobble_floor_ratio, self._spread, self._place)
            log_p = evidence.log_likelihood(counts, self._log_shapes, state.log_z[:, :m])
            null = evidence.band_null(log_p, band)[..., None]
            cap = float(np.exp(self._log_a + _CAP_NATS))
            evidence.update(state.slow[:, :m], log_p[..., SLOWER] - null, happened, cap)
            evidence.update(state.fast[:, :m], log_p[..., FASTER] - null, happened, cap)
        slow, fast = evidence.mixture_log(state.slow[:, :m]), evidence.mixture_log(state.fast[:, :m])
        return learned & (slow >= self._log_a), learned & (fast >= self._log_a), slow

    def _weigh_mix(self, mixes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Alarms of the mix of requests, (m,); updates what recent mixes were."""
        state, m = self._state, self.n_nodes + 1
        base = state.base_mix[:m]
        n_base, n = base.sum(axis=-1), mixes.sum(axis=-1)
        radius = mix.radius_nats(state.mix_wobble[:m], n_base, self.model.strata)
        log_e = mix.log_e(mixes, base, state.recent_mix[:m], radius)
        happened = (n > 0) & (n_base > 0)
        evidence.update(state.mix[:m], log_e[:, None], happened, float(np.exp(self._log_a + _CAP_NATS)))
        state.recent_mix[:m][happened] = state.recent_mix[:m][happened] * np.float32(mix.RECENT_KEEP) + mixes[happened]
        return state.mix[:m, 0] >= np.exp(self._log_a)

    def _seed_alarm(self, m: int) -> NDArray[np.bool_]:
        state = self._state
        now = state.tail[:, :m, 0]
        with np.errstate(invalid="ignore"):
            return (state.periods[:, :m] >= self.detection.kl_periods) & (now > self._threshold(m))

    def _threshold(self, m: int) -> NDArray[np.float64]:
        """Adaptive threshold of P99.9, seconds (4, m)."""
        level = self._state.tail_level[:, :m]
        if self.detection.method == "seed":
            known = np.where(level[..., 2] > 1, level[..., 0], np.nan)
            return seed.tail_threshold_s(known, np.sqrt(level[..., 1]), self._kappa)
        return tail.threshold_s(level, self._kappa)

    # -- blocks --------------------------------------------------------------------------------------------------------------

    def _turn(self, over: int) -> None:
        """Detection period `over` is complete."""
        state, m, settings = self._state, self.n_nodes + 1, self.detection
        done = state.blocks[0, :, :m]
        n, n_base = done.sum(axis=-1, dtype=np.int64), state.base[:, :m].sum(axis=-1)
        if settings.method == "seed":
            kl = seed.kl_nats(state.base[:, :m], done)
            counted = n > 0
        else:
            kl = drift.kl_nats(done, state.base[:, :m]) - drift.bias_nats(ranks.BINS, n, n_base)
            counted = n >= settings.min_samples
        counted &= state.learned[:, :m]
        periods = seed.count_periods(state.periods[:, :m], kl, settings.kl_warn_nats)
        state.periods[:, :m] = np.where(counted, periods, state.periods[:, :m])
        self._turn_tail(over)
        baseline.learn_block(state, over, self._block_s, settings.half_life_s, self._spread)
        baseline.turn_blocks(state, over, settings.min_samples, max(1, round(settings.longest_window_s / self._block_s)))
        pool_bad = state.bad_block[:, 0] >= over - _PENDING_BLOCKS
        self._pending[-1][pool_bad] = 0
        if self._pending[-1].any():
            self.model.learn(self._pending[-1], float(np.exp2(-self._block_s / settings.half_life_s)))
        self._pending[1:] = self._pending[:-1].copy()
        self._pending[0] = 0
        self._follow()

    def _turn_tail(self, over: int) -> None:
        """Full fine histograms give a P99.9, which moves the threshold unless something is wrong, and start again."""
        state, m = self._state, self.n_nodes + 1
        full = state.fine[:, :m].sum(axis=-1, dtype=np.int64) >= self.detection.min_samples
        if not full.any():
            return
        fresh = tail.p999(state.fine[:, :m][full])
        state.tail[:, :m][full] = fresh
        state.fine[:, :m][full] = 0
        good = (state.bad_block[:, :m] < over)[full] & (fresh[:, 3] != CENSORED)
        where = np.zeros((SLIS, m), np.bool_)
        where[full] = good
        level = state.tail_level[:, :m][where]
        keep = float(np.exp2(-self._block_s / self.detection.half_life_s))
        if self.detection.method == "seed":
            tail.level_update(level, fresh[good, 0], keep)
        else:
            tail.threshold_update(level, np.log(fresh[good, 0]), keep)
        state.tail_level[:, :m][where] = level

    # -- output --------------------------------------------------------------------------------------------------------------

    def _report(
        self,
        slot: int,
        n_tick: NDArray[np.int64],
        bad: NDArray[np.bool_],
        alarm: NDArray[np.bool_],
        improved: NDArray[np.bool_],
        mix_alarm: NDArray[np.bool_],
        log_evidence: NDArray[np.float64],
    ) -> BankTick:
        state, m, settings = self._state, self.n_nodes + 1, self.detection
        learned = state.learned[:, :m]
        counts, sums, mixes = baseline.window(state, m, settings.min_samples)
        n, n_base = counts.sum(axis=-1), state.base[:, :m].sum(axis=-1)
        n_mix, n_base_mix = mixes.sum(axis=-1), state.base_mix[:m].sum(axis=-1)
        service = drift.kl_nats(counts, state.base[:, :m]) - drift.bias_nats(ranks.BINS, n, n_base)
        mixed = drift.kl_nats(mixes, state.base_mix[:m]) - drift.bias_nats(self.model.strata, n_mix, n_base_mix)
        usable = learned & (n > 0) & (n_base > 0)
        service = np.where(usable, service, np.nan)
        mixed = np.where(usable, np.where(n_base_mix > 0, mixed, np.nan), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = (sums / n - state.base_sum[:, :m] / n_base) * ranks.NATS_PER_CODE
        shift = np.where(usable, shift, np.nan)
        peer = np.full((SLIS, m), np.nan)
        peer[:, 1:] = peers.shift_against_peers(shift[:, 1:], usable[:, 1:])
        p999 = self._p999(m)
        threshold = self._threshold(m)
        with np.errstate(invalid="ignore"):
            above = (p999[..., 0] > threshold) | self._heavy(counts, n)
        shown = np.where(learned, n, state.seen[:, :m])
        since = state.drift_since[:, :m]
        return BankTick.split(
            n_tick=n_tick,
            n=shown,
            baseline=np.where(learned, np.where(bad, FROZEN, ACTIVE), LEARNING).astype(np.uint8),
            enough=n >= settings.min_samples,
            kl_nats=mixed + service,
            kl_mix_nats=mixed,
            kl_service_nats=service,
            shift_nats=shift,
            peer_shift_nats=peer,
            log_evidence=log_evidence,
            log_threshold=np.full((SLIS, m), self._log_a),
            alarm=alarm,
            improved=improved,
            mix_alarm=np.broadcast_to(mix_alarm, (SLIS, m)),
            p999_s=p999[..., 0],
            p999_lo_s=p999[..., 1],
            p999_hi_s=p999[..., 2],
            p999_kind=np.nan_to_num(p999[..., 3], nan=CENSORED).astype(np.uint8),
            threshold_s=threshold,
            tail_above=learned & above,
            periods=state.periods[:, :m].copy(),
            drift_s=np.where(since >= 0, (slot + 1 - since) * self.tick_s, 0.0),
        )

    def _p999(self, m: int) -> NDArray[np.float64]:
        """P99.9 of the running histogram where it holds enough samples, else of the last full one, (4, m, 4)."""
        state = self._state
        fine = state.fine[:, :m]
        enough = fine.sum(axis=-1, dtype=np.int64) >= self.detection.min_samples
        out = state.tail[:, :m].copy()
        if enough.any():
            out[enough] = tail.p999(fine[enough])
        return out

    def _heavy(self, counts: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """More requests of the window above the baseline's q0.99 than twice its share explains, (4, m)."""
        base = self._state.base[:, : self.n_nodes + 1]
        n_base = np.maximum(base.sum(axis=-1), 1.0)
        slowest = counts[..., -2:].sum(axis=-1)
        share = (base[..., -2:].sum(axis=-1) + 1) / n_base
        log_e = evidence.binomial_log_e(slowest, n, evidence.upper_share(share, n_base, 2.0))
        return log_e > np.log(_DAY_S / self._block_s / self.detection.false_alarms_per_day)

    # -- life ----------------------------------------------------------------------------------------------------------------

    def reset_evidence(self, nodes: NDArray[np.bool_]) -> None:
        """Forgets the evidence against nodes (bool (nodes,)), for example after a breaker closed."""
        rows = np.flatnonzero(nodes) + 1
        self._state.slow[:, rows] = 0
        self._state.fast[:, rows] = 0

    def rebase(self, nodes: NDArray[np.bool_]) -> None:
        """Forgets everything about nodes (bool (nodes,)): a deploy, or an operator says that this is normal now.

        When no node is left with a baseline, the pool's model is forgotten too.
        """
        rows = np.flatnonzero(nodes) + 1
        self._state.forget(rows)
        self._log = self._log.take(~nodes[self._log.node])
        if not self._state.learned[:, 1 : self.n_nodes + 1].any():
            self._state.forget(np.array([0]))
            self.model = PoolModel(self.model.strata)
            self._pending[:] = 0
        self._follow()
