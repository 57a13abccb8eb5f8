"""Runs faults one after the other, each group on a fresh stack, and prints the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.faults import (
    rows_attack,
    rows_clickhouse,
    rows_clock,
    rows_data,
    rows_flood,
    rows_kafka,
    rows_redis,
    rows_visibility,
    rows_workers,
)
from bench.faults.case import Case, Result, play
from bench.faults.closing import close, settle
from bench.faults.registry import FAULTS, Fault
from bench.faults.site import Failed, Site
from schemas.errors import SlodriftError
from streams.settings import Settings

__all__ = ["ROWS", "print_table", "run", "select"]

ROWS = (rows_attack, rows_clickhouse, rows_clock, rows_data, rows_flood, rows_kafka, rows_redis, rows_visibility, rows_workers)
"""Modules that register their faults when they are imported."""

GROUPS: dict[str, dict[str, Any]] = {
    "data": {},
    "more data": {},
    "workers": {},
    "thinned": {"environ": {"SLODRIFT_ARCHIVE_QUIET_S": str(Settings.model_fields["archive_quiet_s"].default)}},
    "redis": {},
    "clickhouse": {"prepare": rows_clickhouse.small_disk},
    "mock kafka": {},
    "kafka": {"real_kafka": True},
    "clock": {},
    "fifty hosts": {"n_hosts": 2},  # beside the fifty, which have processes of their own
    "flood": {},
}
"""How the stack of a group is started."""
_SHOWN = ("lost", "wrong_opens", "decisions", "dead", "rows", "written_twice", "void", "settled_s", "hosts_s")


def run(chosen: Sequence[Fault], say: Any = print) -> list[Result]:
    """All chosen faults, group by group.

    Args:
        chosen: Of `FAULTS`.
        say: Called with a line about each row.
    """
    results: list[Result] = []
    for group in (g for g in GROUPS if any(f.group == g for f in chosen)):
        mine = [f for f in chosen if f.group == group]
        began = time.monotonic()
        with ExitStack() as exits:
            options = GROUPS[group]
            if prepare := options.get("prepare"):
                options = {k: v for k, v in options.items() if k != "prepare"} | exits.enter_context(prepare())
            site = exits.enter_context(Site([f.pool for f in mine], **options))
            say(f"-- {group}: up after {time.monotonic() - began:.1f} s", flush=True)
            alone = [f for f in mine if not f.together]
            results += [*(_one(site, f) for f in alone), *_together(site, [f for f in mine if f.together])]
    return results


def _one(site: Site, fault: Fault) -> Result:
    began = time.monotonic()
    case: Case | None = None
    try:
        case = fault.run(site, fault.pool)
        close(site, [case])
        if fault.check is not None:
            fault.check(site, case)
        if case.after is not None:
            case.after()
        result = _result(fault, case, None, time.monotonic() - began)
    except (Failed, SlodriftError, AssertionError, OSError) as exc:
        result = _result(fault, case, exc, time.monotonic() - began)
        print(site.said(), file=sys.stderr)
        site.heal()
        with suppress(Failed):
            settle(site)  # what is left over is no fault of the next row
    _say(result)
    return result


def _together(site: Site, faults: Sequence[Fault]) -> list[Result]:
    if not faults:
        return []
    began, results = time.monotonic(), []
    cases = [fault.run(site, fault.pool) for fault in faults]
    play(site, cases, 20.0)
    for fault, case in zip(faults, cases, strict=True):
        try:
            close(site, [case])
            if fault.check is not None:
                fault.check(site, case)
            result = _result(fault, case, None, time.monotonic() - began)
        except (Failed, SlodriftError, AssertionError, OSError) as exc:
            result = _result(fault, case, exc, time.monotonic() - began)
            print(site.said(), file=sys.stderr)
        began = time.monotonic()
        _say(result)
        results.append(result)
    return results


def _result(fault: Fault, case: Case | None, error: Exception | None, seconds: float) -> Result:
    figures = {} if case is None else case.figures
    more = {k: v for k, v in figures.items() if k not in _SHOWN}
    shown = {k: figures[k] for k in _SHOWN if k in figures}
    measured = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in (more | shown).items())
    if error is not None:
        measured = f"{type(error).__name__}: {error}"
    return Result(fault.name, fault.injected, fault.expected, measured, error is None, round(seconds, 1), fault.group)


def _say(result: Result) -> None:
    print(
        f"{'holds' if result.holds else 'FAILS'} {result.seconds:6.1f} s  {result.group}: {result.fault}: {result.measured}",
        flush=True,
    )


def print_table(results: Sequence[Result]) -> None:
    """The table on stdout."""
    console = Console(highlight=False, soft_wrap=False, width=None if Console().is_terminal else 190)
    table = Table(title="Faults", title_justify="left")
    for column in ("fault", "injected", "expected", "measured", "s", "verdict"):
        table.add_column(column, overflow="fold")
    for r in results:
        table.add_row(r.fault, r.injected, r.expected, r.measured[:400], f"{r.seconds:.0f}", "holds" if r.holds else "FAILS")
    console.print(table, markup=False)
    print(f"{sum(r.holds for r in results)} of {len(results)} rows hold")


def select(words: Sequence[str], *, quick: bool = False, exact: bool = False) -> list[Fault]:
    """Faults by part of a name or by group, or by the whole name alone; all of them without words."""
    if exact:
        return [f for f in FAULTS if f.name in words]
    found = [f for f in FAULTS if not words or any(w in f.name or w == f.group for w in words)]
    return [f for f in found if f.quick] if quick else found
