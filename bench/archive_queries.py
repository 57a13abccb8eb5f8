"""The queries that people make of the archive: every panel and variable of the dashboards, and `slodrift explain`.

Grafana's macros and variables are replaced as Grafana and its ClickHouse plugin do it: a time range in pixels of a panel, and
variables that select everything or one pool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Selection", "dashboard_queries", "expand"]

DASHBOARDS = Path(__file__).resolve().parents[1] / "dashboards" / "json"
_PIXELS = 720


@dataclass(frozen=True)
class Selection:
    """What is chosen on a dashboard.

    Attributes:
        from_s, to_s: Time range, Unix seconds.
        values: Chosen values by variable; a variable without any selects all.
    """

    from_s: int
    to_s: int
    values: dict[str, list[str]]


def dashboard_queries() -> list[tuple[str, str]]:
    """(name, SQL with macros) of every panel and every variable of all dashboards."""
    found: list[tuple[str, str]] = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        found += _named(json.loads(path.read_text()), path.stem)
    return found


def _named(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        name = value.get("title") or (f"variable {value['name']}" if "query" in value and "name" in value else name)
        if "rawSql" in value:
            yield name, value["rawSql"]
        for child in value.values():
            yield from _named(child, name)
    elif isinstance(value, list):
        for child in value:
            yield from _named(child, name)


def expand(sql: str, chosen: Selection) -> str:
    """Plain ClickHouse SQL.

    Raises:
        ValueError: A macro or a variable is not known here.
    """

    def all_or(match: re.Match[str]) -> str:
        return match[1] if match[2] in chosen.values else "1=1"

    def quoted(match: re.Match[str]) -> str:
        values = chosen.values.get(match[1], [])
        return ", ".join("'" + value.replace("'", "''") + "'" for value in values)

    step_s = max(1, (chosen.to_s - chosen.from_s) // _PIXELS)
    for pattern, replacement in (
        (r"\$__conditionalAll\((\w+ IN \(\$\{\w+:sqlstring\}\)), \$(\w+)\)", all_or),
        (r"\$\{(\w+):sqlstring\}", quoted),
        (r"\$\{__from:date:seconds\}", str(chosen.from_s)),
        (r"\$\{__to:date:seconds\}", str(chosen.to_s)),
        (r"\$__timeFilter\((\w+)\)", rf"(\1 >= toDateTime({chosen.from_s}) AND \1 <= toDateTime({chosen.to_s}))"),
        (r"\$__timeInterval\((\w+)\)", rf"toStartOfInterval(toDateTime(\1), INTERVAL {step_s} second)"),
    ):
        sql = re.sub(pattern, replacement, sql)
    if "$" in sql:
        raise ValueError(f"a macro that is not known here: {sql}")
    return sql
