"""A proposal as a policy file that says in comments what it rests on."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from streams.tune.propose import Proposal
from streams.tune.rate import Rate

__all__ = ["fragment"]

_WIDTH = 118


def fragment(proposals: Sequence[Proposal], extends: str, sources: Sequence[str]) -> str:
    """YAML text that `slodrift policy check` accepts; pools without a proposal appear in comments only."""
    wanted = proposals[0].wanted_per_day
    lines = [
        f"# Detection settings for at most {wanted:g} false alarms a day and series (a node's latency), proposed by",
        f"# `slodrift tune` from {', '.join(re.sub(r'[^ -~]', '?', s) for s in sources)}.",
        "# Bounds are 95 % ones. The history must be healthy: whatever was wrong in it now counts as wobble.",
        "apiVersion: slodrift/v1",
        "kind: Policy",
        f"extends: {extends}",
    ]
    lines.append("pools:" if any(p.rate is not None for p in proposals) else "pools: {}")
    for proposal in proposals:
        lines += ["", *(f"  {part}" for line in _pool(proposal) for part in _wrapped(line))]
    return "\n".join(lines) + "\n"


def _pool(p: Proposal) -> Iterator[str]:
    yield f"# {p.pool}: {p.days:.3g} days, {p.node_days:.3g} node-days and {p.series_days:.3g} series-days with a baseline"
    for trial in p.trials:
        over = f"would have passed it {_times(trial.now.alarms)}" if trial.now.alarms else "never passed it"
        yield (
            f"# band {100 * trial.wobble_floor_ratio:.3g} %: {p.wanted_per_day:g} a day asks for evidence of "
            f"e^{trial.wanted_log:.1f}, the history {over}; its tail asks for e^{trial.needed_log:.1f}"
        )
    if p.highest:
        yield "# highest evidence in the history:"
        for e in p.highest:
            when = datetime.fromtimestamp(e.start_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            yield f"#   e^{e.peak_log:.1f} {e.node} {e.sli}, from {when} for {e.end_s - e.start_s:.0f} s"
    if p.rate is None:
        yield f"# nothing proposed: {p.why_not}"
        return
    yield f"# {_claim(p, p.rate)}"
    yield f"{json.dumps(_literal(p.pool))}:"
    yield "  detection:"
    yield f"    # alarm from evidence e^{p.threshold_log:.1f} on"
    yield f"    false_alarms_per_day: {float(f'{p.false_alarms_per_day:.3g}')!r}"
    within = f"99.9 % of the windows were within {100 * math.expm1(p.shift_nats):.3g} % of their baseline"
    yield f"    # latencies may wobble at least by this much unnoticed; {within}"
    yield f"    wobble_floor_ratio: {p.wobble_floor_ratio:g}"


def _claim(p: Proposal, rate: Rate) -> str:
    counted = (
        f"{_times(rate.alarms)} in the history ({rate.incidents} at different times)" if rate.alarms else "never in the history"
    )
    text = (
        f"with these settings: {counted}; the exact bound is {rate.bound_per_day:.2g} a day, by the fitted tail "
        f"{rate.fitted_per_day:.2g} (bound {rate.fitted_upper_per_day:.2g})"
    )
    if p.supported:
        return f"{text}: this history alone shows the wanted rate"
    needed = f"{p.node_days_needed:.3g} node-days without an alarm would"
    return f"{text}: this history is too short to show the wanted rate by itself, {needed}"


def _wrapped(line: str) -> list[str]:
    """A comment of any length as several lines."""
    if len(line) <= _WIDTH:
        return [line]
    indent = line[: line.index("#") + 2]
    return textwrap.wrap(line, _WIDTH, subsequent_indent=indent)


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _literal(pool: str) -> str:
    """A glob that matches this name alone."""
    return re.sub(r"([*?\[])", r"[\1]", pool)
