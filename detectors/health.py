"""Health of nodes that needs no statistics: STALLED, IDLE, STALE, fatal XIDs.

A health page can be green on a hung engine, so progress is what counts: requests running and no token generated is a stall
(vllm-project/vllm#39863), nothing running and nothing asked for is idle, and silence is neither good nor bad. Counters start
again with a new boot, which is progress too. A node that sends requests alone, without state events, is judged by them:
it cannot stall, and it is stale only after a silence that is long for it.

All state is arrays over nodes; times are Unix seconds, NaN where a thing never happened.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from schemas.policy import Health as HealthPolicy

__all__ = ["GONE_AFTER_S", "IDLE", "LEFT_AFTER_S", "OK", "STALE", "STALLED", "Health", "HealthTick", "NodeSamples"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OK, IDLE, STALE, STALLED = 0, 1, 2, 3
"""Codes of `HealthTick.code`."""

GONE_AFTER_S = 600.0
"""A node silent this long has left the pool: it is no longer expected to be heard."""
LEFT_AFTER_S = 120.0
"""The same for a node that last said it had nothing to do: that is how one is drained and taken away."""

_GAPS = 10.0  # a node without state events is stale after this many of its usual gaps between requests
_UNKNOWN = -1.0


@dataclass(slots=True)
class NodeSamples:
    """State events of one tick, in any order.

    Attributes:
        node: Node index, (n,).
        ts_s: Unix seconds, (n,).
        boot: Stable 32-bit hash of the boot id, (n,); 0 where unknown.
        running: Requests running, (n,); -1 where unknown.
        tokens: `generated_tokens_total`, (n,); -1 where unknown.
    """

    node: NDArray[np.intp]
    ts_s: Floats
    boot: NDArray[np.int64]
    running: Floats
    tokens: Floats


@dataclass(slots=True)
class HealthTick:
    """Health at the end of a tick: `code` uint8 (N,), `fatal` bool (N,) a fatal XID lately, `expected` bool (N,) nodes that
    should be heard of, `fresh` bool (N,) nodes that were.
    """

    code: NDArray[np.uint8]
    fatal: Bools
    expected: Bools
    fresh: Bools


@dataclass(slots=True)
class Health:
    """Memory of the nodes of one pool; arrays of capacity >= n.

    Attributes:
        heard_s: Last sign of life of any kind.
        state_s: Last state event.
        asked_s: Last request.
        progress_s: Last time a token was generated, nothing was running, or the process started anew.
        gap_s: Usual time between two ticks with a request.
        running, tokens, boot: Of the last state event.
        fatal_s: Last fatal XID.
    """

    heard_s: Floats
    state_s: Floats
    asked_s: Floats
    progress_s: Floats
    gap_s: Floats
    running: Floats
    tokens: Floats
    boot: NDArray[np.int64]
    fatal_s: Floats

    @classmethod
    def empty(cls, n: int = 0) -> Health:
        """Memory of `n` nodes of which nothing is known."""
        heard_s, state_s, asked_s, progress_s, gap_s, fatal_s = (np.full(n, np.nan) for _ in range(6))
        running, tokens = (np.full(n, _UNKNOWN) for _ in range(2))
        boot = np.zeros(n, np.int64)
        return cls(heard_s, state_s, asked_s, progress_s, gap_s, running, tokens, boot, fatal_s)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = Health.empty(n - len(self.heard_s))
        for f in fields(self):
            setattr(self, f.name, np.concatenate([getattr(self, f.name), getattr(more, f.name)]))

    def observe(self, samples: NodeSamples) -> None:
        """Take in the state events of one tick."""
        if len(samples.node) == 0:
            return
        order = np.lexsort((samples.tokens, samples.ts_s, samples.node))
        node, ts_s, boot = samples.node[order], samples.ts_s[order], samples.boot[order]
        running, tokens = samples.running[order], samples.tokens[order]
        first = np.ones(len(node), np.bool_)
        first[1:] = node[1:] != node[:-1]
        before_tokens, before_boot = np.roll(tokens, 1), np.roll(boot, 1)
        before_tokens[first], before_boot[first] = self.tokens[node[first]], self.boot[node[first]]
        new_boot = (boot != before_boot) & (boot != 0) & (before_boot != 0)
        moved = (tokens != before_tokens) & (tokens != _UNKNOWN)  # less than before is a counter that started again
        alive = moved | new_boot | (running == 0)
        alive |= np.isnan(self.progress_s[node]) & first  # a stall is timed from what was seen
        np.fmax.at(self.progress_s, node[alive], ts_s[alive])
        last = np.append(first[1:], True)
        at = node[last]
        known = tokens[last] != _UNKNOWN
        self.tokens[at[known]] = tokens[last][known]
        self.running[at] = running[last]
        self.boot[at] = np.where(boot[last] != 0, boot[last], self.boot[at])
        self.state_s[at] = np.fmax(self.state_s[at], ts_s[last])
        self.heard_s[at] = np.fmax(self.heard_s[at], ts_s[last])

    def requests(self, asked_s: Floats, served_s: Floats) -> None:
        """Take in the last request (any outcome) and the last one answered well of a tick, Unix seconds (N,), NaN for none."""
        seen = ~np.isnan(asked_s)
        gap = asked_s - self.asked_s
        self.gap_s = np.where(
            seen & ~np.isnan(gap), np.where(np.isnan(self.gap_s), gap, 0.8 * self.gap_s + 0.2 * gap), self.gap_s
        )
        self.asked_s = np.fmax(self.asked_s, asked_s)
        self.heard_s = np.fmax(self.heard_s, asked_s)
        self.progress_s = np.fmax(self.progress_s, served_s)  # an answer is progress, whatever the counter says

    def judge(self, t_s: float, rules: HealthPolicy, memory_s: float) -> HealthTick:
        """Health at `t_s`; a fatal XID counts for `memory_s` seconds."""
        with np.errstate(invalid="ignore"):
            silent_s = t_s - self.heard_s
            beats = ~np.isnan(self.state_s)
            patience_s = rules.stale_after_s + np.where(beats, 0.0, _GAPS * np.where(np.isnan(self.gap_s), 60.0, self.gap_s))
            fresh = silent_s < patience_s
            current = beats & (t_s - self.state_s < rules.stale_after_s)
            stuck = current & (self.running > 0) & (self.tokens >= 0) & (t_s - self.progress_s >= rules.stalled_after_s)
            quiet_s = np.maximum(2.0 * rules.stale_after_s, 3.0 * np.nan_to_num(self.gap_s))
            asked = t_s - self.asked_s < quiet_s  # NaN compares False
            idle = current & (self.running == 0) & ~asked
            fatal = t_s - self.fatal_s < memory_s
            missed_s = np.where(self.running == 0, LEFT_AFTER_S, GONE_AFTER_S)
            expected = silent_s < np.maximum(missed_s, 2.0 * patience_s)
        code = np.where(stuck, STALLED, np.where(~fresh, STALE, np.where(idle, IDLE, OK))).astype(np.uint8)
        return HealthTick(code, fatal, expected, fresh)
