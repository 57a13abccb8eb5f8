"""ClickHouse's windows after a row: visible once, and value for value what the judge makes of the frames in the log.

With `archive_quiet_s` of 0 every window is a row. Otherwise the archive keeps what `Thinner` says of the topic, in the order of
the topic: these very rows must be there, whoever was killed when, and among them all that it keeps of the recomputation.
"""

from __future__ import annotations

from typing import Any

from bench.faults.case import Case
from bench.faults.site import Failed, Site
from bench.faults.workload import Answer
from schemas.topics import WINDOWS
from schemas.windows import WindowBlock, decode_windows, encode_windows
from sinks.rows import Origin, window_columns
from streams.worker.archive_thin import Thinner

__all__ = ["stored_windows"]

_Key = tuple[int, str, str]
"""When (ms), node, SLI."""


def stored_windows(site: Site, case: Case, made: Answer) -> tuple[int, int, int]:
    """(rows, requests that were judged, rows as written).

    Raises:
        Failed: A row is missing, too many, visible twice, or has another value.
    """
    blocks = [decode_windows(encode_windows(pool, t_ms, w.columns())) for t_ms, pool, w in made.windows if pool == case.pool]
    computed = _values(blocks)
    found = site.reader.query(
        "SELECT * EXCEPT (t, src_topic, src_partition, src_offset, src_idx), toUnixTimestamp64Milli(t) AS t FROM window_history "
        "WHERE pool = {pool:String}",
        {"pool": case.pool},
    )
    stored = {(r["t"], r["node"], r["sli"]): r for r in found}
    if len(stored) != len(found):
        raise Failed(f"{case.pool}: {len(found) - len(stored)} rows of window_history are visible twice")
    quiet_s = site.settings.archive_quiet_s
    due = computed.keys()
    if quiet_s:
        due = _kept(_said(site, case), quiet_s)
        if left_out := _kept(blocks, quiet_s) - due:
            raise Failed(f"{case.pool}: {len(left_out)} rows that the recomputation keeps are not kept of the topic")
        case.figures["thinned_from"] = len(computed)
    if stored.keys() != due:
        raise Failed(
            f"{case.pool}: {len(due - stored.keys())} rows of windows are missing, {len(stored.keys() - due)} are too many, "
            f"of {len(due)}"
        )
    for key, row in stored.items():
        computed_row = computed.get(key, {})
        if wrong := {n: (row[n], v) for n, v in computed_row.items() if _differ(row[n], v)} or not computed_row:
            raise Failed(f"{case.pool}: row {key} differs from the recomputation: {wrong}")
    (raw,) = site.reader.query("SELECT count() AS n FROM windows WHERE pool = {pool:String}", {"pool": case.pool})
    return len(stored), sum(r["n_tick"] for r in computed.values() if r["sli"] == "ttft_s"), raw["n"]


def _values(blocks: list[WindowBlock]) -> dict[_Key, dict[str, Any]]:
    """All rows of some blocks as the table has them."""
    rows: dict[_Key, dict[str, Any]] = {}
    for block in blocks:
        columns = window_columns({"t": [block.t_ms] * block.n, "pool": [block.pool] * block.n, **block.columns}, Origin("", 0, 0))
        names = [name for name in columns if not name.startswith("src_")]
        for values in zip(*(columns[name] for name in names), strict=True):
            row = dict(zip(names, values, strict=True))
            rows[block.t_ms, row["node"], row["sli"]] = row
    return rows


def _said(site: Site, case: Case) -> list[WindowBlock]:
    """The windows of a pool in their topic, with whatever a judge said again."""
    values = [record.value() or b"" for record in site.tail.since(case.mark, WINDOWS.name)]
    return [block for v in values if case.pool.encode() in v and (block := decode_windows(v)).pool == case.pool]


def _kept(blocks: list[WindowBlock], quiet_s: float) -> set[_Key]:
    """What the archive keeps of blocks in this order."""
    thinner = Thinner(quiet_s)
    return {(b.t_ms, b.columns["node"][i], b.columns["sli"][i]) for b in blocks for i in thinner.keep(b)}


def _differ(stored: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(stored, float):
        return abs(stored - expected) > 1e-6 * max(1.0, abs(expected))
    return bool(stored != expected)
