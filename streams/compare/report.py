"""A comparison as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from streams.compare.judge import Comparison, Measure, PoolComparison

__all__ = ["print_comparison"]

_STYLES = {"outside": "red", "inside": "green", "unclear": "yellow"}
_PAGE_WIDTH = 140
_MANY = 9.0  # from a change by so much on, "x 12" says it better than "+1100 %"


def print_comparison(found: Comparison) -> None:
    """One table a pool and one sentence for all."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console = Console(soft_wrap=True, highlight=False, width=_PAGE_WIDTH)
    console.print(f"A {found.a}\nB {found.b}", markup=False)
    for pool in found.pools:
        console.print(_table(pool))
    alone = len(found.pools) == 1
    outside = [
        m.measure if alone else f"{pool.pool} {m.measure}"
        for pool in found.pools
        for m in pool.measures
        if m.verdict == "outside"
    ]
    unclear = sum(m.verdict == "unclear" for pool in found.pools for m in pool.measures)
    text = f"outside tolerance: {', '.join(outside)}" if outside else "nothing is outside tolerance"
    if unclear:
        text += f"; {unclear} unclear: their intervals hold the tolerance, longer recordings would tell"
    level = f"intervals hold together with {found.confidence * 100:g} % confidence"
    console.print(f"{text} (judged by {found.judged_by}; {level})", markup=False)


def _table(pool: PoolComparison) -> Table:
    name = pool.pool if pool.pool == pool.pool_b else f"{pool.pool} and {pool.pool_b}"
    title = f"{name}: {pool.requests_a} requests in {pool.span_a_s:.0f} s, {pool.requests_b} in {pool.span_b_s:.0f} s"
    right = ("A", "B", "change", "interval", "service", "interval ", "workload", "tolerance")
    columns = (Column(word, justify="right", no_wrap=True) for word in right)
    table = Table(Column("measure", no_wrap=True), *columns, "verdict", title=Text(title), title_justify="left")
    for m in pool.measures:
        sign = "-" if m.measure.startswith("slo.") else "+"
        table.add_row(
            m.measure, _value(m, m.a), _value(m, m.b), _moved(m, m.change), _interval(m, m.change_low, m.change_high),
            "" if m.unit == "share" else _moved(m, m.service),
            "" if m.unit == "share" else _interval(m, m.service_low, m.service_high),
            "" if m.unit == "share" else _moved(m, m.workload), f"{sign}{100 * m.tolerance:g} %",
            Text(m.verdict, style=_STYLES[m.verdict]),
        )  # fmt: skip
    return table


def _value(m: Measure, value: float) -> str:
    return f"{value:.4g} s" if m.unit == "ratio" else f"{100 * value:.3f} %"


def _moved(m: Measure, value: float | None) -> str:
    if value is None:
        return "unknown"
    if value >= _MANY:
        return f"x {1 + value:.3g}"
    return f"{100 * value:+.1f} %" if m.unit == "ratio" else f"{100 * value:+.3f} %"


def _interval(m: Measure, low: float | None, high: float | None) -> str:
    return f"{'?' if low is None else _moved(m, low)} .. {'?' if high is None else _moved(m, high)}"
