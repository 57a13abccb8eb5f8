"""State of all series of one pool (nodes x latency SLIs) and the one step that moves it: `SeriesBank.close`.

Row 0 of every array is the pool as a whole (all nodes' requests together), nodes follow from row 1. Requests of a tick wait
as rows until the tick closes and are then counted, so neither the order of arrival nor the framing can change a result:
every sum is a sum of integers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from detectors import baseline, blocks, evidence, histogram, learning, ranks, recent, tail
from detectors.baseline import ACTIVE, FROZEN, LEARNING
from detectors.derived import Derived
from detectors.model import PoolModel
from detectors.report import Terms, report, tail_threshold_s
from detectors.result import BankTick
from detectors.rows import Rows
from detectors.state import SLIS, BankState, pack, unpack
from detectors.strata import stratum_count, stratum_of, uncached_tokens
from detectors.tail import CENSORED, EMPIRICAL, EXTRAPOLATED
from detectors.weigh import Alarms, weigh, weigh_mix
from detectors.weights import Weight, count, picked
from schemas.errors import SchemaError
from schemas.policy import Detection

__all__ = ["ACTIVE", "CENSORED", "EMPIRICAL", "EXTRAPOLATED", "FROZEN", "LEARNING", "BankTick", "SeriesBank"]

_DAY_S = 86400.0
_SILENT_TURN = 64
_FINE_PER_BLOCK = 30_000
"""Samples a period that can be added to 16-bit counts without a thought: they are read and emptied every period."""
_MIX_MOST = 1 << 31  # of a block and stratum: the long window adds it to fewer than a window of requests
_VERSION = 3


class SeriesBank:
    """All series of one pool.

    Args:
        detection: Settings.
        tick_s: Length of a tick, seconds.
        open_slots: Ticks expected to be receiving at once.

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
        block_s = self._per_block * tick_s
        kappa = detection.kappa
        if kappa is None:
            kappa = tail.kappa_for(detection.false_alarms_per_day * block_s / _DAY_S, "gumbel")
        log_a = evidence.log_threshold(_DAY_S / tick_s, detection.false_alarms_per_day)
        self._terms = Terms(detection, kappa, log_a, tick_s, block_s)
        lag = max(1, round(detection.lag_s / block_s))
        self._state = BankState.empty(8, lag + 1, len(self.model.row_of))
        self._open: dict[int, list[Rows]] = {}
        self._closed: int | None = None
        self._log = Rows.none()
        self._last: BankTick | None = None
        self._last_held = np.zeros(0, np.bool_)
        self._last_filled = 0
        self._follow()

    # -- input ----

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
        weight: Weight = None,
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
            weight: Requests that each row stands for; None where all stand for one.

        Raises:
            ValueError: The slot is closed, or a node was never added.
        """
        if self._closed is not None and slot <= self._closed:
            raise ValueError(f"slot {slot} is closed (the last closed one is {self._closed})")
        if len(node) == 0:
            return
        if int(node.max()) >= self.n_nodes:
            raise ValueError(f"node {int(node.max())} was never added (there are {self.n_nodes})")
        tokens = uncached_tokens(prompt_tokens, cached_tokens)
        output = np.zeros(len(node), np.uint32) if output_tokens is None else output_tokens
        stratum = stratum_of(tokens, adapter_key, self.detection.max_strata)
        number = np.broadcast_to(np.int64(slot), len(node))
        rows = Rows(node.astype(np.uint32, copy=False), latency_s, _narrow(tokens), _narrow(output), stratum, number, weight)
        self._open.setdefault(slot, []).append(rows)

    @property
    def has_baseline(self) -> NDArray[np.bool_]:
        """Nodes with a baseline in some latency, (nodes,)."""
        return np.asarray(self._state.learned[:, 1 : 1 + self.n_nodes].any(axis=0))

    # -- one tick ----

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
        turned = self._turn_to(block)
        self._closed = slot
        held = np.concatenate([[False], hold])
        rows = Rows.join(self._open.pop(slot, []))
        if len(rows) == 0 and not turned and np.array_equal(held, self._last_held) and self._last is not None:
            return self._again(self._last, slot)
        n_tick = self._raw(rows, slot)
        self._learn(rows, slot, held)
        answering = _any(state.learned[:, 1:m])
        known = rows if answering.all() else rows.take(answering[rows.node])
        (counts, sums, mixes), residuals = learning.tally(self.model, known, state.offset, m)
        n = counts @ np.ones(ranks.BINS, np.float32)
        alarms = self._weigh(counts, n, mixes, held)
        state.bad_block[:, :m][alarms.bad] = block
        since = state.drift_since[:, :m]
        state.drift_since[:, :m] = np.where(alarms.slower, np.where(since < 0, slot, since), -1)
        baseline.add_wobble(state, sums, n, self._derived.scale)
        suspect = alarms.bad | (alarms.log_evidence > self._terms.log_a / 3)
        recent.follow(state, sums, n, self._derived.scale, self.tick_s, self.detection.half_life_s, suspect)
        state.blocks[0, :, :m] += counts
        state.block_sum[0, :, :m] += sums
        mix = state.block_mix[0, :m]
        if rows.weight is not None:  # so many requests in a block that no count of 32 bits holds them
            mixes = np.minimum(mixes, _MIX_MOST - mix.astype(np.int64))
        mix += mixes.astype(np.uint32)
        if len(known):
            self._last_filled = block
            bad = _any(alarms.bad[:, 1:])
            self.model.observe(*residuals, bad[known.node] if bad.any() else None, known.weight)
        if len(rows):
            urgent = alarms.log_evidence > self._terms.log_a / 2
            blocks.read_tails(state, m, self.detection, slot, self._per_block, self._terms.block_s, urgent)
        tick = report(state, self._derived, self._terms, slot, n_tick, alarms, self._seen())
        self._last, self._last_held = tick, held
        return tick

    def _again(self, last: BankTick, slot: int) -> BankTick:
        """A tick without requests repeats the last one; only time goes on."""
        since = self._state.drift_since[:, : self.n_nodes + 1]
        drift_s = np.where(since >= 0, (slot + 1 - since) * self.tick_s, 0.0).T
        tick = dataclasses.replace(last, n_tick=np.zeros_like(last.n_tick), drift_s=drift_s[1:])
        if last.pool is not None:
            tick.pool = dataclasses.replace(last.pool, n_tick=np.zeros_like(last.pool.n_tick), drift_s=drift_s[:1])
        return tick

    def _raw(self, rows: Rows, slot: int) -> NDArray[np.int64]:
        """Counts latencies as they are, (4, m), into the fine histograms too."""
        state, m = self._state, self.n_nodes + 1
        node = rows.node.astype(np.intp) + 1
        asked = count(node, rows.weight, m)
        present = asked > 0
        present[0] = len(rows) > 0
        state.born[:m][present & (state.born[:m] < 0)] = slot
        n_tick = np.zeros((SLIS, m), np.int64)
        for sli in range(SLIS):
            who, seconds, weight = node, rows.latency_s[sli], rows.weight
            measured = np.isfinite(seconds)
            if measured.all():
                n_tick[sli] = asked
            else:
                who, seconds, weight = node[measured], seconds[measured], picked(weight, measured)
                n_tick[sli] = count(who, weight, m)
            histogram.add_tick(state.fine[sli], who, seconds, _FINE_PER_BLOCK // self._per_block, weight)
        n_tick[:, 0] = n_tick[:, 1:].sum(axis=1)
        state.seen[:, :m] += n_tick
        return n_tick

    def _learn(self, rows: Rows, slot: int, held: NDArray[np.bool_]) -> None:
        """Keeps requests of nodes without a baseline, and gives one to those that have enough."""
        state, m = self._state, self.n_nodes + 1
        new = ~_any(state.learned[:, :m])
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
        """Recomputes what follows from the model and the baselines, for the mix of the last blocks."""
        recent = self._state.block_mix[:2, 0].sum(axis=0)
        enough = recent.sum() >= self.detection.min_samples
        weight = self.model.weights(recent if enough else self._state.base_mix[0])
        self._derived = Derived.of(self._state, self.model, self.detection, weight)

    def _seen(self) -> NDArray[np.intp]:
        """Strata that have occurred; never none."""
        seen = np.flatnonzero(self.model.row_of >= 0)
        return seen if len(seen) else np.zeros(1, np.intp)

    # -- judging ----

    def _weigh(
        self, counts: NDArray[np.float32], n: NDArray[np.float32], mixes: NDArray[np.int64], held: NDArray[np.bool_]
    ) -> Alarms:
        """Tests the tick's counts."""
        state, terms, m = self._state, self._terms, n.shape[1]
        weight = self.model.weights(mixes[0])
        slower, faster, sudden, log_evidence = weigh(state, self._derived, self.detection, terms.log_a, counts, n, weight)
        if self.detection.method == "seed":
            faster = sudden = np.zeros_like(slower)
            with np.errstate(invalid="ignore"):
                above = state.tail[:, :m, 0] > tail_threshold_s(state, m, terms)
            slower = above & (state.periods[:, :m] >= self.detection.kl_periods)
        mix_alarm = weigh_mix(state, terms.log_a, mixes, self._seen())
        return Alarms(slower, faster, sudden, mix_alarm, log_evidence, slower | held)

    # -- blocks ----

    def _turn_to(self, block: int) -> bool:
        """Completes the blocks before `block`; True when that changed anything."""
        if self._closed is None or block == self._closed // self._per_block:
            return False
        turned = False
        for over in range(self._closed // self._per_block, block):
            # After a long silence all blocks are empty: only the ageing of long windows is left, and it can wait.
            if over - self._last_filled <= len(self._state.blocks) or over % _SILENT_TURN == 0:
                self._turn(over)
                turned = True
        return turned

    def _turn(self, over: int) -> None:
        """Detection period `over` is complete."""
        state, settings = self._state, self.detection
        keep = float(np.exp2(-self._terms.block_s / settings.half_life_s))
        recent.forget(state, ~state.blocks[0].any(axis=-1))
        learned = blocks.complete(state, self.n_nodes + 1, settings, over, self._terms.block_s, self._derived.scale)
        if self.model.turn(keep, state.bad_block[:, 0] >= over - 1) or learned:
            self._follow()

    # -- life ----

    def reset_evidence(self, nodes: NDArray[np.bool_]) -> None:
        """Forgets the evidence against nodes (bool (nodes,)), for example after a breaker closed."""
        rows = np.flatnonzero(nodes) + 1
        self._state.slow[:, :, rows] = 0
        self._state.fast[:, :, rows] = 0
        self._state.recent[:, rows] = 0
        self._last = None

    def rebase(self, nodes: NDArray[np.bool_]) -> None:
        """Forgets everything about nodes (bool (nodes,)): a deploy, or an operator says that this is normal now.

        When no node is left with a baseline, the pool's model is forgotten too.
        """
        rows = np.flatnonzero(nodes) + 1
        self._state.forget(rows)
        self._log = self._log.take(~nodes[self._log.node])
        if not self._state.learned[:, 1 : self.n_nodes + 1].any():
            self._state.forget(np.array([0]))
            self.model = PoolModel(len(self.model.row_of))
        self._last = None
        self._follow()

    def state(self) -> bytes:
        """Everything that later results depend on, open ticks included; `restore` continues from it as if nothing had
        happened.
        """
        return msgspec.msgpack.encode(self.dump())

    def dump(self) -> dict[str, Any]:
        """The same before it is encoded: parts of it are the arrays themselves, so encode it before anything goes on."""
        arrays = {f.name: getattr(self._state, f.name) for f in dataclasses.fields(BankState)}
        return {
            "version": _VERSION,
            "n_nodes": self.n_nodes,
            "tick_s": self.tick_s,
            "open_slots": self.open_slots,
            "closed": self._closed,
            "last_filled": self._last_filled,
            "arrays": pack(arrays | {"weight": self._derived.weight}),
            "model": pack(self.model.arrays()),
            "open": {str(slot): pack(Rows.join(parts).arrays()) for slot, parts in sorted(self._open.items())},
            "log": pack(self._log.arrays()),
        }

    @classmethod
    def restore(cls, raw: bytes | dict[str, Any], detection: Detection) -> SeriesBank:
        """The bank whose `state` is `raw`, or whose `dump` was encoded and decoded as a part of something else.

        Raises:
            SchemaError: The bytes are not such a state, or were made under settings that shape it otherwise (tick, period,
                lag, strata).
        """
        try:
            saved = raw if isinstance(raw, dict) else msgspec.msgpack.decode(raw)
            if saved["version"] != _VERSION:
                raise SchemaError("snapshot_version", f"bank state version {saved['version']}, expected {_VERSION}")
            bank = cls(detection, saved["tick_s"], saved["open_slots"])
            arrays, model = unpack(saved["arrays"]), unpack(saved["model"])
            shape = (len(arrays["blocks"]), len(model["row_of"]))
            if shape != (len(bank._state.blocks), len(bank.model.row_of)):
                raise SchemaError("snapshot_settings", "the state was saved under other detection settings: start without it")
            weight = arrays.pop("weight")
            arrays["block_sum"] = arrays["block_sum"].astype(np.int64)  # of 32 bits in older states
            bank._state, bank.model = BankState(**arrays), PoolModel.from_arrays(model)
            bank._derived = Derived.of(bank._state, bank.model, detection, weight)
            bank.n_nodes, bank._closed, bank._last_filled = saved["n_nodes"], saved["closed"], saved["last_filled"]
            bank._open = {int(slot): [Rows(**unpack(rows))] for slot, rows in saved["open"].items()}
            bank._log = Rows(**unpack(saved["log"]))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise SchemaError("snapshot_malformed", f"not a bank state: {error}") from error
        return bank


def _narrow(tokens: NDArray[np.uint32]) -> NDArray[np.unsignedinteger[Any]]:
    """Token counts in 16 bits where all of them fit: many rows wait for their tick to close."""
    return tokens.astype(np.uint16) if int(np.maximum.reduce(tokens, initial=0)) < 1 << 16 else tokens


def _any(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether any SLI of a row has the flag, (rows,)."""
    return np.asarray(flags.any(axis=0))
