"""ClickHouse: roles with the least rights that the server understands, and values that reach queries as parameters alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.embedded import EmbeddedStack

ROOT = Path(__file__).parents[2]
ROLES = (ROOT / "deploy/clickhouse/users.sql").read_text(encoding="utf-8")
STATEMENTS = [s.strip() for s in re.sub(r"--[^\n]*", "", ROLES).split(";") if s.strip()]
ASKING = {"query", "command", "raw_query", "query_np", "query_df", "query_rows_stream", "query_column_block_stream"}
MADE_OF_OURS = {  # (file, text of the argument): why it is no place for values
    ("sinks/clickhouse.py", "sql"),  # the method that all others call, with constants
    ("sinks/migrate.py", "statement"),  # a file of ours, its digest checked
    ("sinks/migrate.py", "f'CREATE DATABASE IF NOT EXISTS {name}'"),  # checked against _IDENTIFIER; DDL takes no parameters
}


def test_the_engine_understands_the_roles(embedded_stack: EmbeddedStack) -> None:
    from sinks.clickhouse import open_client

    client = open_client(embedded_stack.clickhouse_dsn)
    for statement in STATEMENTS:
        client.query(f"EXPLAIN AST {statement}")
    client.close()


def test_nobody_may_delete_and_readers_may_only_read() -> None:
    grants = {s.rsplit(" TO ", 1)[1]: s for s in STATEMENTS if s.startswith("GRANT")}
    assert set(grants) == {"slodrift_setup", "slodrift_archive", "slodrift_reader", "slodrift_auditor"}
    for role, grant in grants.items():
        assert not re.search(r"\b(ALL|DELETE|DROP|TRUNCATE|SYSTEM|FILE|URL|REMOTE|WITH GRANT OPTION)\b", grant), role
    assert grants["slodrift_reader"] == "GRANT SELECT ON slodrift.* TO slodrift_reader"
    assert "slodrift.*" not in grants["slodrift_auditor"]
    reader = next(s for s in STATEMENTS if s.startswith("CREATE ROLE IF NOT EXISTS slodrift_reader"))
    assert re.search(r"readonly = 2 READONLY", reader)
    assert "max_execution_time" in reader
    assert "max_memory_usage" in reader


def queries() -> Iterator[tuple[str, ast.expr]]:
    for path in sorted([*ROOT.glob("sinks/*.py"), *ROOT.glob("streams/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) and node.args else None
            if isinstance(called, ast.Attribute) and called.attr in ASKING and ast.unparse(called.value) != "app":
                assert isinstance(node, ast.Call)
                yield path.relative_to(ROOT).as_posix(), node.args[0]


@pytest.mark.parametrize(("file", "argument"), list(queries()), ids=lambda x: x if isinstance(x, str) else ast.unparse(x)[:40])
def test_values_are_parameters(file: str, argument: ast.expr) -> None:
    """A query is a constant, or a constant chosen from a table of ours."""
    constant = isinstance(argument, ast.Constant) or (isinstance(argument, ast.Name) and argument.id.isupper())
    chosen = isinstance(argument, ast.Subscript) and isinstance(argument.value, ast.Name) and argument.value.id.isupper()
    assert constant or chosen or (file, ast.unparse(argument)) in MADE_OF_OURS, f"{file}: {ast.unparse(argument)}"


def test_the_exceptions_are_still_there() -> None:
    assert {(file, ast.unparse(argument)) for file, argument in queries()} >= MADE_OF_OURS
