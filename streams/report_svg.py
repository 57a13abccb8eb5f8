"""Charts of a report as inline SVG: no script, no font, no address. Colours are CSS variables of the page, so that they follow
its light or dark scheme; series are told apart by shape too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

import numpy as np
from numpy.typing import NDArray

__all__ = ["Span", "histogram", "lanes", "score", "time_axis"]

Span = tuple[float, float, str]
"""(from, to, state) of a breaker, Unix seconds."""

_WIDTH, _LEFT, _RIGHT = 760, 48, 12
_STEPS_S = (1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800, 2592000, 31536000)


def _svg(height: float, parts: Iterable[str], label: str) -> str:
    inside = "".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(label)}">{inside}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0):.1f}" class="{kind}">{tip}</rect>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def histogram(
    base: NDArray[np.floating], window: NDArray[np.integer], nats: NDArray[np.float64], edges_ratio: NDArray[np.float64]
) -> str:
    """Reference and current shares over the same bins, and below them what each bin adds to KL.

    Args:
        base: Counts of the baseline, (BINS,).
        window: Counts of the window, (BINS,).
        nats: `detectors.view.contributions_nats` of them, (BINS,).
        edges_ratio: Cuts between the bins, (BINS - 1,), NaN where unknown.
    """
    bins = len(window)
    q, p = base / max(float(base.sum()), 1e-9), window / max(int(window.sum()), 1)
    top = max(float(q.max()), float(p.max()), 0.05)
    high = max(float(nats.max()), 0.02)
    low = min(float(nats.min()), -0.02)
    room, gap, bars = 130.0, 30.0, 90.0
    step = (_WIDTH - _LEFT - _RIGHT) / bins
    parts = []
    for share in _nice(top):
        y = 12 + room * (1 - share / top)
        parts += [_line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"), _text(_LEFT - 5, y + 3, f"{100 * share:g} %", "end")]
    zero = 12 + room + gap + bars * high / (high - low)
    for value in (high, low) if low < -0.021 else (high,):
        y = 12 + room + gap + bars * (high - value) / (high - low)
        parts.append(_text(_LEFT - 5, y + 3, f"{value:+.2f}", "end"))
    for k in range(bins):
        x = _LEFT + k * step
        where = _range(k, edges_ratio)
        tip = f"{where}: reference {100 * q[k]:.2f} %, current {100 * p[k]:.2f} %, {nats[k]:+.4f} nats"
        parts.append(_rect(x + 0.08 * step, 12 + room * (1 - q[k] / top), 0.40 * step, room * q[k] / top, "reference", tip))
        parts.append(_rect(x + 0.52 * step, 12 + room * (1 - p[k] / top), 0.40 * step, room * p[k] / top, "current", tip))
        size = bars * abs(float(nats[k])) / (high - low)
        up = nats[k] >= 0
        parts.append(_rect(x + 0.2 * step, zero - size if up else zero, 0.6 * step, size, "more" if up else "less", tip))
        if k < bins - 1 and np.isfinite(edges_ratio[k]):
            parts.append(_text(x + step, 12 + room + 14, f"{edges_ratio[k]:.2f}"))
    parts.append(_line(_LEFT, 12 + room, _WIDTH - _RIGHT, 12 + room, "axis"))
    parts.append(_line(_LEFT, zero, _WIDTH - _RIGHT, zero, "axis"))
    parts.append(_text(_WIDTH - _RIGHT, 12 + room + 26, "latency / usual latency of such a request, at the cuts", "end"))
    parts.append(_text(_LEFT + 4, 12 + room + gap + 2, f"nats by bin, {float(nats.sum()):.3f} in all", "start"))
    return _svg(12 + room + gap + bars + 8, parts, "reference and current histogram, and the KL contribution of each bin")


def _range(k: int, edges: NDArray[np.float64]) -> str:
    low = f"{edges[k - 1]:.2f}" if k else "0"
    high = f"{edges[k]:.2f}" if k < len(edges) else "more"
    return f"{low} to {high} times the usual" if np.isfinite(edges).all() else f"bin {k + 1}"


def _nice(top: float) -> list[float]:
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5) if top / s <= 5)
    return [i * step for i in range(1, int(top / step + 1e-9) + 1)]


def time_axis(start_s: float, end_s: float, y: float, left: float = _LEFT) -> tuple[list[str], float]:
    """Labels of a time axis at height `y`, and pixels a second."""
    span = max(end_s - start_s, 1.0)
    scale = (_WIDTH - left - _RIGHT) / span
    step = next((s for s in _STEPS_S if span / s <= 8), _STEPS_S[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
    parts = []
    at = np.ceil(start_s / step) * step
    while at <= end_s:
        x = left + (at - start_s) * scale
        parts += [_line(x, 0, x, y, "grid"), _text(x, y + 13, datetime.fromtimestamp(at, UTC).strftime(form))]
        at += step
    return parts, scale


def score(
    end_s: NDArray[np.float64], evidence: NDArray[np.floating], threshold: float, kl: NDArray[np.floating],
    spans: Sequence[Span], start_s: float, stop_s: float,
) -> str:  # fmt: skip
    """Evidence against its threshold over time, KL beside it, and when the node's breaker was not closed.

    Args:
        end_s: Times of the points, Unix seconds (n,).
        evidence: Log of the statistic, (n,), NaN while there is no baseline.
        threshold: Log at which it alarms.
        kl: Service part of KL, nats (n,).
        spans: Of the node's breaker.
        start_s: Left end of the axis.
        stop_s: Right end of the axis.
    """
    height = 110.0
    top = max(threshold * 1.15, float(np.nanmax(evidence, initial=0.0)) * 1.05)
    parts, scale = time_axis(start_s, stop_s, height)
    shading = [
        _rect(_LEFT + (a - start_s) * scale, 0, (b - a) * scale, height, f"span {_css(state)}", f"{state} {b - a:.0f} s")
        for a, b, state in spans
    ]
    x = _LEFT + (end_s - start_s) * scale
    kl_top = max(float(np.nanmax(kl, initial=0.0)), 0.2)
    parts += shading
    parts += [f'<path d="{d}" class="kl"/>' for d in _paths(x, height * (1 - np.clip(kl, 0, kl_top) / kl_top))]
    parts += [f'<path d="{d}" class="score"/>' for d in _paths(x, height * (1 - np.clip(evidence, 0, top) / top))]
    y = height * (1 - threshold / top)
    parts += [
        _line(_LEFT, y, _WIDTH - _RIGHT, y, "threshold"), _text(_LEFT - 5, y + 3, f"e^{threshold:.0f}", "end"),
        _text(_LEFT - 5, height, "1", "end"), _line(_LEFT, height, _WIDTH - _RIGHT, height, "axis"),
        _text(_WIDTH - _RIGHT - 2, 10, f"KL up to {kl_top:.2f} nats", "end", "tick klword"),
    ]  # fmt: skip
    return _svg(height + 18, parts, "evidence against its threshold over time")


def _paths(x: NDArray[np.float64], y: NDArray[np.floating]) -> list[str]:
    """Path data of the runs without gaps."""
    known = np.isfinite(x) & np.isfinite(y)
    runs = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8))).reshape(-1, 2)
    return ["M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[i:j], y[i:j], strict=True)) for i, j in runs]


def lanes(rows: Sequence[tuple[str, Sequence[Span], Sequence[tuple[float, str]]]], start_s: float, stop_s: float) -> str:
    """One lane a node: when its breaker was not closed, and marks where a cap held an open back.

    Args:
        rows: (node, spans, (time, what) of the marks).
        start_s: Left end of the axis.
        stop_s: Right end of the axis.
    """
    left, lane = 150, 20.0
    height = lane * len(rows)
    parts, scale = time_axis(start_s, stop_s, height, left)
    for i, (name, spans, marks) in enumerate(rows):
        y = i * lane
        parts.append(_text(left - 6, y + 14, name if len(name) <= 22 else f"...{name[-19:]}", "end", "name"))
        parts.append(_line(left, y + lane / 2, _WIDTH - _RIGHT, y + lane / 2, "grid"))
        for a, b, state in spans:
            tip = f"{name} {state} for {b - a:.0f} s"
            parts.append(_rect(left + (a - start_s) * scale, y + 3, max((b - a) * scale, 2), lane - 6, f"bar {_css(state)}", tip))
        for at, what in marks:
            parts.append(_rect(left + (at - start_s) * scale - 1.5, y + 5, 3, lane - 10, "capped", f"{name}: {what}"))
    return _svg(height + 18, parts, "breakers over time")


def _css(state: str) -> str:
    return {"OPEN": "open", "FORCED_OPEN": "open", "HALF_OPEN": "half", "DISABLED": "off"}.get(state, "off")
