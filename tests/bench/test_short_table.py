"""The table of `bench short` in a document."""

from __future__ import annotations

import pytest

from bench.report import Report
from bench.short import BEGIN, END, put, table
from schemas.errors import ConfigError
from streams.commands.bench import BENCHES


def test_table_replaces_what_stood_between_the_markers_and_nothing_else() -> None:
    document = f"# T\n{BEGIN}\nold\n{END}\nrest\n"
    once = put(document, "new")
    assert once == f"# T\n{BEGIN}\nnew\n{END}\nrest\n"
    assert put(once, "new") == once
    with pytest.raises(ConfigError, match="no place"):
        put("# T\n", "new")


def test_table_has_a_row_a_result_and_says_where_it_was_made() -> None:
    report = Report("short", "t", ("what", "ns each"), 0)
    report.add("ours", "5.1")
    report.add("theirs", None)
    lines = table(report).splitlines()
    assert lines[:4] == ["| what | ns each |", "|---|---:|", "| ours | 5.1 |", "| theirs |  |"]
    assert "Python" in lines[-1]


def test_every_benchmark_says_how_long_it_takes() -> None:
    for name, (module, took, what) in BENCHES.items():
        assert module.startswith("bench."), name
        assert took.split()[1] in ("min,", "min", "s"), name
        assert what, name
