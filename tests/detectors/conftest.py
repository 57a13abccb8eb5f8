"""A small pool that can be driven tick by tick."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from detectors.bank import BankTick, SeriesBank
from schemas.batch import UNKNOWN_TOKENS
from schemas.policy import Detection


@dataclass
class Fleet:
    """Nodes that serve `rate` requests a tick each: TTFT grows with the prompt, e2e with prompt and answer."""

    bank: SeriesBank
    nodes: int
    rate: int = 25
    prompt_median: float = 550.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    slot: int = 0

    def requests(self, slower=None, rate=None):
        """Columns for `ingest` of one tick; `slower` is a factor per node."""
        node = np.repeat(np.arange(self.nodes, dtype=np.uint32), self.rate if rate is None else rate)
        n = len(node)
        factor = np.ones(n) if slower is None else np.asarray(slower, float)[node]
        prompt = self.rng.lognormal(np.log(self.prompt_median), 0.7, n).astype(np.uint32)
        output = self.rng.lognormal(np.log(100), 0.6, n).astype(np.uint32)
        ttft = (0.05 + 1.8e-4 * prompt) * self.rng.lognormal(0, 0.25, n) * factor
        tpot = 0.018 * self.rng.lognormal(0, 0.125, n) * factor
        queue = self.rng.lognormal(np.log(0.004), 0.5, n)
        latency = np.stack([ttft, tpot, queue, ttft + output * tpot]).astype(np.float32)
        return node, latency, prompt, np.full(n, UNKNOWN_TOKENS), np.zeros(n, np.uint32), output

    def tick(self, slower=None, hold=None, rate=None) -> BankTick:
        """Serves one tick and closes it."""
        self.bank.ingest(self.slot, *self.requests(slower, rate))
        return self.close(hold)

    def close(self, hold=None) -> BankTick:
        """Closes the tick as it is."""
        held = np.zeros(self.bank.n_nodes, bool) if hold is None else hold
        self.slot += 1
        return self.bank.close(self.slot - 1, held)

    def run(self, ticks, **kwargs) -> list[BankTick]:
        return [self.tick(**kwargs) for _ in range(ticks)]


@pytest.fixture
def fleet():
    """`fleet(nodes=4, rate=25, seed=0, tick_s=5.0, **settings)` makes a pool."""

    def make(nodes=4, rate=25, seed=0, tick_s=5.0, **settings) -> Fleet:
        bank = SeriesBank(Detection(**settings), tick_s, open_slots=4)
        for _ in range(nodes):
            bank.add_node()
        return Fleet(bank, nodes, rate, rng=np.random.default_rng(seed))

    return make
